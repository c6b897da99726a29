package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sessionshare/sessionshare"
)

// A step is one scene. It says what happens, and returns an error that says what
// was expected if it did not.
type step struct {
	title string
	run   func(context.Context, *world, *narrator) error
}

// steps are played in this order; the first three also without sharing.
var steps = []step{
	{"Alice's client opens a session", openSession},
	{"It calls a tool six times, and every call lands on the next replica", callAround},
	{"The replica that opened the session is killed; the client goes on", killOpener},
	{"A new process takes the dead replica's place, and knows the session", restart},
	{"A tool asks Alice something; her answer lands on another replica", askAlice},
	{"She cancels a call that runs on another replica", cancelCall},
	{"A tool is added; the client hears of it on its stream", changeTools},
	{"Mallory has got hold of the session ID", foreign},
	{"Alice's client closes the session", closeSession},
	{"It is gone everywhere", goneEverywhere},
}

func openSession(ctx context.Context, w *world, n *narrator) error {
	if w.client == nil { // a world without sharing may have opened one by other means
		if err := w.open(ctx, balanced); err != nil {
			return fmt.Errorf("the client gives up: %w", err)
		}
	}
	var trail []string
	for _, h := range w.wire.trail() {
		trail = append(trail, h.what+" → "+h.replica)
	}
	n.say("%s", strings.Join(trail, ", "))
	if w.client.ID() == "" {
		return errors.New("expected a session ID, got none")
	}
	n.good("opened on replica %s, and the rest of the handshake was served elsewhere", w.opener())
	return nil
}

func callAround(ctx context.Context, w *world, n *narrator) error {
	first, answered := told{}, map[string]int{}
	for i := range 6 {
		got, err := w.call(ctx, "whereami")
		if err != nil {
			return fmt.Errorf("call %d fails, and the client is stuck: %w", i+1, err)
		}
		n.say("call %d → replica %s, session %s", i+1, got.Replica, got.Session)
		answered[got.Replica]++
		if i == 0 {
			first = got
		}
		if got.Session != first.Session || got.User != alice {
			return fmt.Errorf("expected session %s of %s, got session %s of %s", first.Session, alice, got.Session, got.User)
		}
	}
	if len(answered) != replicas {
		return fmt.Errorf("expected answers of %d replicas, got them of %v", replicas, answered)
	}
	n.good("three replicas, one session")
	return nil
}

func killOpener(ctx context.Context, w *world, n *narrator) error {
	victim := w.opener()
	w.cluster.Kill(index(victim))
	n.say("replica %s is dead: connections broken, memory gone, nobody was told", victim)
	for i := range 4 {
		got, err := w.call(ctx, "whereami")
		if err != nil {
			return fmt.Errorf("call %d fails: %w", i+1, err)
		}
		n.say("call %d → replica %s", i+1, got.Replica)
		if got.Replica == victim {
			return fmt.Errorf("expected an answer of a living replica, got one of %s", victim)
		}
	}
	n.good("no error, no new session: the client has not noticed")
	return nil
}

func restart(ctx context.Context, w *world, n *narrator) error {
	victim := w.opener()
	if err := w.cluster.Restart(index(victim)); err != nil {
		return err
	}
	for range 2 * replicas {
		got, err := w.call(ctx, "whereami")
		if err != nil {
			return fmt.Errorf("expected an answer, got: %w", err)
		}
		n.say("call → replica %s", got.Replica)
		if got.Replica != victim {
			continue
		}
		if s := w.shared[index(victim)].Stats(); s.Opened != 0 || s.Resumed != 1 {
			return fmt.Errorf("expected one session resumed and none opened, got %d and %d", s.Resumed, s.Opened)
		}
		n.good("the new process resumed the session from the store")
		return nil
	}
	return fmt.Errorf("expected an answer of replica %s, got none", victim)
}

// foreign sends every kind of request with Alice's session ID in Mallory's name.
func foreign(ctx context.Context, w *world, n *narrator) error {
	id := w.client.ID()
	for i := range replicas {
		var got []string
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			status, err := request(ctx, w, i, method, mallory, id)
			if err != nil {
				return err
			}
			if status != http.StatusNotFound {
				return fmt.Errorf("expected 404 for %s %s on replica %s, got %d", mallory, method, name(i), status)
			}
			got = append(got, fmt.Sprint(method, " ", status))
		}
		n.say("replica %s: %s", name(i), strings.Join(got, ", "))
	}
	for range replicas {
		if _, err := w.call(ctx, "whereami"); err != nil {
			return fmt.Errorf("expected Alice to go on, got: %w", err)
		}
	}
	n.good("what is not hers does not exist for her, and Alice goes on")
	return nil
}

func closeSession(ctx context.Context, w *world, n *narrator) error {
	id := w.client.ID()
	if err := w.client.Close(); err != nil {
		return fmt.Errorf("expected a clean close, got: %w", err)
	}
	replica := w.wire.servedBy(http.MethodDelete)
	if replica == "" {
		return errors.New("expected a DELETE on some replica, got none")
	}
	status, err := request(ctx, w, index(replica), http.MethodPost, alice, id)
	if err != nil {
		return err
	}
	if status != http.StatusNotFound {
		return fmt.Errorf("expected 404 on replica %s at once, got %d", replica, status)
	}
	n.good("DELETE → replica %s, where it is gone at once", replica)
	return nil
}

func goneEverywhere(ctx context.Context, w *world, n *narrator) error {
	var gone [replicas]time.Duration
	var asking errgroup.Group
	for i := range replicas {
		asking.Go(func() (err error) {
			gone[i], err = waitGone(ctx, w, i)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	hosted := 0
	for i, r := range w.shared {
		n.say("replica %s: 404, %.2f s after the close", name(i), gone[i].Seconds())
		hosted += r.Stats().Hosted
	}
	if hosted != 0 {
		return fmt.Errorf("expected no copy of the session anywhere, got %d", hosted)
	}
	n.good("nobody hosts it any more, and nothing brings it back")
	return nil
}

// waitGone waits until a replica answers 404 to Alice. It learns of the close when
// it looks at the session's close mark again.
func waitGone(ctx context.Context, w *world, replica int) (time.Duration, error) {
	const bound = sessionshare.DefaultRecheckInterval + sessionshare.DefaultStoreTimeout
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		status, err := request(ctx, w, replica, http.MethodPost, alice, w.client.ID())
		took := time.Since(began)
		switch {
		case err != nil:
			return 0, err
		case status == http.StatusNotFound:
			return took, nil
		case took > bound:
			return 0, fmt.Errorf("expected 404 on replica %s within %v, got %d", name(replica), bound, status)
		}
	}
}

// request sends a request of a session past the proxy and the SDK's client, and
// returns the status of its answer.
func request(ctx context.Context, w *world, replica int, method, user, sessionID string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
	}
	req, err := http.NewRequestWithContext(ctx, method, w.cluster.ReplicaURL(replica)+"/mcp", body)
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth(user, "")
	req.Header.Set("Mcp-Session-Id", sessionID)
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close() // a stream is not read to its end
}
