package interop

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what sessions are for

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var faultSteps = []Step{
	{"cancel a call that runs on another replica, and no other", func(ctx context.Context, r *Run) error {
		if err := r.can(NoCancel); err != nil {
			return err
		}
		return atOnce(Replicas, func(n int) error { return r.cancelOne(ctx, fmt.Sprint("call ", n)) })
	}},
	{"the stream ends cleanly: it is reopened, and messages arrive", func(ctx context.Context, r *Run) error { return r.dropStream(ctx, false) }},
	{"the stream is reset: it is reopened, and messages arrive", func(ctx context.Context, r *Run) error { return r.dropStream(ctx, true) }},
	{"a call hangs up on purpose, and is taken up again", func(ctx context.Context, r *Run) error {
		if !r.W.Variant.Events || r.W.Variant.JSON {
			return Unsupported("no event store")
		}
		return r.onEach(ctx, func() (int, error) {
			a := r.call(ctx, "hangUp", Args{Text: "back again", MS: 300})
			return a.replica, a.expect("back again")
		})
	}},
	{"the stream of a call is cut cleanly: the answer arrives", func(ctx context.Context, r *Run) error { return r.cutCall(ctx, false) }},
	{"the stream of a call is reset: the answer arrives", func(ctx context.Context, r *Run) error {
		if err := r.can(NoResumeAfterReset); err != nil {
			return err
		}
		return r.cutCall(ctx, true)
	}},
	{"a replica dies: calls go on", func(ctx context.Context, r *Run) error {
		i, err := r.awaitHolder(ctx)
		if err != nil {
			return err
		}
		return r.lose(ctx, other(i))
	}},
	{"the replica of the stream dies: messages go on", func(ctx context.Context, r *Run) error {
		i, err := r.awaitHolder(ctx)
		if err != nil {
			return err
		}
		if err := r.lose(ctx, i); err != nil {
			return err
		}
		return r.listens(ctx, "after the death")
	}},
	{"a replica is deployed: calls go on, none fails", func(ctx context.Context, r *Run) error {
		i, err := r.awaitHolder(ctx)
		if err != nil {
			return err
		}
		stopped := make(chan error, 1)
		go func() {
			m := r.W.Member(i)
			if m.Replica != nil {
				m.Replica.Drain()
			}
			// Out of the rotation, streams end, calls do not.
			r.W.Cluster.Proxy.Remove(strings.TrimPrefix(r.W.Cluster.ReplicaURL(i), "http://"))
			time.Sleep(100 * time.Millisecond)
			stopped <- r.W.Cluster.Stop(ctx, i)
		}()
		for over := false; !over; {
			select {
			case err := <-stopped:
				if err != nil {
					return err
				}
				over = true
			default:
			}
			if err := r.call(ctx, "echo", Args{Text: "on"}).expect("on"); err != nil {
				return err
			}
		}
		if err := r.W.Cluster.Restart(i); err != nil {
			return err
		}
		if err := r.everywhere(ctx); err != nil {
			return err
		}
		time.Sleep(hearing)
		return r.listens(ctx, "after the deploy")
	}},
}

// cancelOne cancels a call. The cancellation goes to the replica whose turn it is:
// if that is the one of the call, it is no proof, but right as well.
func (r *Run) cancelOne(ctx context.Context, name string) error {
	spared := make(chan answer, 1)
	go func() { spared <- r.call(ctx, "sleep", Args{Text: "spared " + name, MS: 3000}) }()
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan answer, 1)
	go func() { done <- r.call(calling, "sleep", Args{Text: name, MS: 15000}) }()
	begun := func(name string) bool {
		for i := range Replicas {
			if r.W.Journal.Has(fmt.Sprintf("begun %s %d", name, i)) {
				return true
			}
		}
		return false
	}
	if !Eventually(ctx, 5*time.Second, func() bool { return begun(name) && begun("spared "+name) }) {
		return errors.New("the calls did not begin")
	}
	cancel()
	if !Eventually(ctx, 4*time.Second, func() bool { return r.W.Journal.Has("cancelled " + name) }) {
		return errors.New("the call was not cancelled")
	}
	if a := <-done; a.err == nil {
		return fmt.Errorf("the cancelled call returned %q", a.text)
	}
	return (<-spared).expect("spared " + name)
}

// dropStream breaks the client's stream, which must come back.
func (r *Run) dropStream(ctx context.Context, reset bool) error {
	for n := range 2 {
		before, ok := r.W.Tap.Stream(r.C.SessionID())
		if !ok {
			return errors.New("the client has no stream")
		}
		before.Cut(reset)
		if !Eventually(ctx, time.Second, func() bool { e, ok := r.W.Tap.Stream(r.C.SessionID()); return !ok || e.cut != before.cut }) {
			return errors.New("the stream did not end")
		}
		if err := r.listens(ctx, fmt.Sprintf("after drop %d, reset %v", n, reset)); err != nil {
			return err
		}
	}
	return nil
}

// listens waits for the client's stream, and checks that messages from all
// replicas arrive, once.
func (r *Run) listens(ctx context.Context, text string) error {
	if _, err := r.awaitHolder(ctx); err != nil {
		return err
	}
	return r.fromEach(ctx, func(ctx context.Context, i int) error {
		mark, text := r.C.Seen().Mark(), fmt.Sprint(text, " from ", i)
		err := r.W.Session(i, r.C.SessionID()).Log(ctx, &mcp.LoggingMessageParams{Level: "error", Data: text})
		if err != nil {
			return err
		}
		r.C.Seen().Await(ctx, 2*time.Second, mark, 1, Is("log", text))
		return same("log", r.C.Seen().Texts(mark, "log"), []string{text})
	})
}

// cutCall breaks the answer of a call while it runs.
func (r *Run) cutCall(ctx context.Context, reset bool) error {
	if !r.W.Variant.Events || r.W.Variant.JSON {
		return Unsupported("no event store")
	}
	for n := range Replicas {
		text := fmt.Sprintf("%s cut %v %d", r.Maker.Name, reset, n)
		done := make(chan answer, 1)
		go func() { done <- r.call(ctx, "sleep", Args{Text: text, MS: 700}) }()
		var e Exchange
		if !Eventually(ctx, 5*time.Second, func() (ok bool) { e, ok = r.W.Tap.Call(r.C.SessionID()); return ok }) {
			return errors.New("the call did not begin")
		}
		e.Cut(reset)
		if err := (<-done).expect(text); err != nil {
			return err
		}
	}
	return nil
}

func other(i int) int { return (i + 1) % Replicas }

// awaitHolder is holder, once there is one.
func (r *Run) awaitHolder(ctx context.Context) (int, error) {
	if !Eventually(ctx, 8*time.Second, func() bool { return r.holder() >= 0 }) {
		return -1, errors.New("the client does not reopen its stream")
	}
	return r.holder(), nil
}

// lose kills a replica, makes calls, and starts it again.
func (r *Run) lose(ctx context.Context, i int) error {
	r.W.Cluster.Kill(i)
	time.Sleep(50 * time.Millisecond) // the balancer sees its idle connections go
	for range 2 * Replicas {
		if err := r.call(ctx, "echo", Args{Text: "on"}).expect("on"); err != nil {
			return err
		}
	}
	if err := r.W.Cluster.Restart(i); err != nil {
		return err
	}
	if err := r.onEach(ctx, func() (int, error) {
		a := r.call(ctx, "echo", Args{Text: "again"})
		return a.replica, a.expect("again")
	}); err != nil {
		return err
	}
	time.Sleep(hearing)
	return nil
}

var endSteps = []Step{
	{"no message has come twice", func(_ context.Context, r *Run) error {
		if err := r.can(NoLastEventID); err != nil && r.W.Variant.Events {
			return err
		}
		var twice []string
		seen := map[string]bool{}
		for _, text := range r.C.Seen().Texts(0, "log") {
			if seen[text] {
				twice = append(twice, text)
			}
			seen[text] = true
		}
		return same("came twice", twice, []string{})
	}},
	{"a second session is its own, and its end is its own", func(ctx context.Context, r *Run) error {
		c, err := r.Maker.New()
		if err != nil {
			return err
		}
		defer c.Close()
		second := &Run{W: r.W, Maker: r.Maker, C: c}
		if err := callSteps[0].Do(ctx, second); err != nil {
			return err
		}
		if c.SessionID() == r.C.SessionID() {
			return errors.New("it has the same ID")
		}
		if err := atOnce(2, func(n int) error {
			r := []*Run{r, second}[n]
			return r.asksAtOnce(ctx, 6, func(n int) string { return fmt.Sprint(r.C.SessionID(), " ", n) })
		}); err != nil {
			return err
		}
		id := c.SessionID()
		if err := c.Terminate(ctx); err != nil {
			return err
		}
		if err := r.gone(ctx, id); err != nil {
			return err
		}
		return r.onEach(ctx, func() (int, error) {
			a := r.call(ctx, "echo", Args{Text: "here"})
			return a.replica, a.expect("here")
		})
	}},
	{"the client ends its session: it is gone everywhere", func(ctx context.Context, r *Run) error {
		if err := r.everywhere(ctx); err != nil {
			return err
		}
		id := r.C.SessionID()
		if err := r.C.Terminate(ctx); err != nil {
			return err
		}
		if err := r.gone(ctx, id); err != nil {
			return err
		}
		if a := r.call(ctx, "echo", Args{}); a.err == nil {
			return errors.New("a call was served")
		}
		// What it had open has ended, and its copies have.
		if !Eventually(ctx, r.settle(), func() bool {
			for i := range Replicas {
				if r.W.Session(i, id) != nil {
					return false
				}
			}
			return true
		}) {
			return errors.New("a replica still has a copy")
		}
		return nil
	}},
}

// gone waits until every replica answers 404 for a session.
func (r *Run) gone(ctx context.Context, id string) error {
	for i := range Replicas {
		status := 0
		if !Eventually(ctx, r.settle(), func() bool {
			status = ping(ctx, r.W.Cluster.ReplicaURL(i)+"/mcp", id)
			return status == http.StatusNotFound
		}) {
			return fmt.Errorf("replica %d answers %d", i, status)
		}
	}
	return nil
}

// ping sends a ping on a session and returns the status of the answer.
func ping(ctx context.Context, url, id string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", id)
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
