//go:build unix

package storelab

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

// subscribing is what a client of each store that carries hints sends to get them.
var subscribing = map[string]string{
	"Redis":      "\r\nsubscribe\r\n",
	"PostgreSQL": "LISTEN ",
	"NATS":       "SUB sessionshare.",
}

const (
	hintLimit = 500 * time.Millisecond // a hint takes a few ms, but not on a busy machine
	hintsBack = 15 * time.Second       // after the fault: a server that is ready, and the longest pause between attempts

	// withoutHints is for how long a close may go unnoticed where no hint tells of it.
	withoutHints = sessionshare.DefaultRecheckInterval + storeTimeout + grace
)

// TestHints: with hints, what happens on one replica is felt on the others at once,
// and close marks are read rarely. When the server is killed, or the subscription
// cut, replicas notice, read the marks at once and every 2 s from then on, and have
// hints again without anybody's help.
func TestHints(t *testing.T) {
	// At once, since it is mostly waiting; not with t.Parallel, which would let in
	// the load of other tests.
	var stores sync.WaitGroup
	defer stores.Wait()
	for _, b := range networked {
		if subscribing[b.name] != "" {
			stores.Go(func() { t.Run(b.name, func(t *testing.T) { hintsComeAndGo(t, b) }) })
		}
	}
}

func hintsComeAndGo(t *testing.T, b backend) {
	server, addr := b.start(t)
	w := newWire(t, addr, 0)
	open := func(addr string) *replica {
		return newReplica(t, sessionshare.Options{Store: b.open(t, addr)}, addSay) // RecheckInterval zero: it depends on hints
	}
	c := &hintCluster{near: open(addr), other: open(addr), cut: open(w.addr)}
	c.all = []*replica{c.near, c.other, c.cut}
	c.flow(t, time.Now())
	t.Run("subscription cut", func(t *testing.T) {
		c.rare(t)
		c.flow(t, c.cutSubscription(t, w, subscribing[b.name]))
	})
	t.Run("server killed", func(t *testing.T) {
		c.rare(t)
		c.flow(t, c.killServer(t, server))
	})
}

// A hintCluster is three replicas, of which one can be cut off the server.
type hintCluster struct {
	near, other, cut *replica
	all              []*replica
}

// addSay adds a tool that says something to clients that want to hear it.
func addSay(server *mcp.Server) {
	server.AddTool(&mcp.Tool{Name: "say", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{}, req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "said"})
		})
}

func (r *replica) says(id string) bool {
	w := r.do(context.Background(), http.MethodPost, id, call("tools/call", `{"name":"say","arguments":{}}`))
	return strings.Contains(w.Body.String(), `"notifications/message"`)
}

func (r *replica) ping(id string) (code int) {
	return r.do(context.Background(), http.MethodPost, id, call("ping", "{}")).Code
}

func (r *replica) delete(id string) (code int) {
	return r.do(context.Background(), http.MethodDelete, id, "").Code
}

// everywhere opens a session and lets all replicas serve it. For
// DefaultRecheckInterval from made on, no copy looks at the store by itself.
func (c *hintCluster) everywhere(t *testing.T, opener *replica) (id string, made time.Time, ok bool) {
	t.Helper()
	made = time.Now()
	id = opener.open(t)
	for _, r := range c.all {
		if r.ping(id) != http.StatusOK {
			return id, made, false // the store is not back yet
		}
	}
	return id, made, true
}

// A deed is done on one replica, and felt on the others.
type deed struct {
	name string
	do   func(r *replica, id string) bool
	felt func(r *replica, id string) bool
}

var closes = deed{"DELETE",
	func(r *replica, id string) bool { return r.delete(id) == http.StatusNoContent },
	func(r *replica, id string) bool { return r.ping(id) == http.StatusNotFound },
}

var setsLevel = deed{"logging/setLevel",
	func(r *replica, id string) bool {
		return r.do(context.Background(), http.MethodPost, id, call("logging/setLevel", `{"level":"info"}`)).Code == http.StatusOK
	},
	(*replica).says,
}

// hinted does the deed on a session of its own, and returns how long it was until
// all replicas had felt it. ok says that hints told them: they had no other reason
// to look at the store yet.
func (c *hintCluster) hinted(t *testing.T, by *replica, d deed) (took time.Duration, ok bool) {
	t.Helper()
	id, made, ok := c.everywhere(t, by)
	if !ok || slices.ContainsFunc(c.all, func(r *replica) bool { return d.felt(r, id) }) {
		return 0, false
	}
	began := time.Now()
	if !d.do(by, id) {
		return 0, false
	}
	for _, r := range c.all {
		for !d.felt(r, id) {
			if time.Since(made) >= sessionshare.DefaultRecheckInterval {
				return 0, false
			}
			time.Sleep(time.Millisecond)
		}
	}
	return time.Since(began), time.Since(made) < sessionshare.DefaultRecheckInterval
}

// flow waits until hints have come from every replica to all others since the
// server was in order, and checks that they keep coming. Until then a close may be
// felt for another reason: a replica looks at the store when hints begin to come.
func (c *hintCluster) flow(t *testing.T, healed time.Time) {
	t.Helper()
	for felt := 0; felt < len(c.all); {
		if time.Since(healed) > hintsBack {
			t.Fatalf("no hints %v after all was in order", hintsBack)
		}
		if _, ok := c.hinted(t, c.all[felt], closes); ok {
			felt++
		}
	}
	t.Logf("hints come everywhere %v after all was in order", time.Since(healed).Round(time.Millisecond))
	for _, d := range []deed{closes, setsLevel} {
		var took []time.Duration
		for i, r := range c.all {
			one, ok := c.hinted(t, r, d)
			if !ok {
				t.Errorf("%s on replica %d was not felt on all others by a hint", d.name, i)
				continue
			}
			took = append(took, one.Round(10*time.Microsecond))
		}
		t.Logf("%s felt on all others after %v", d.name, took)
		if len(took) > 0 && slices.Min(took) > hintLimit {
			t.Errorf("%s was felt after %v, all of them over %v", d.name, took, hintLimit)
		}
	}
}

// rare checks that marks are read less often than they would be without hints.
func (c *hintCluster) rare(t *testing.T) {
	t.Helper()
	id, made, ok := c.everywhere(t, c.near)
	before := c.cut.Stats().Rechecks
	for time.Since(made) < sessionshare.DefaultRecheckInterval+500*time.Millisecond {
		ok = ok && c.cut.ping(id) == http.StatusOK
		time.Sleep(20 * time.Millisecond)
	}
	if looks := c.cut.Stats().Rechecks - before; !ok || looks > 0 {
		t.Errorf("a session that nobody closed was served: %t, and its marks were read %d times although hints come", ok, looks)
	}
}

// nextLook uses a session until its replica looks at the store for that, and
// returns when the request began that made it look.
func (r *replica) nextLook(t *testing.T, id string) time.Time {
	t.Helper()
	before := r.Stats().Rechecks
	for start := time.Now(); time.Since(start) < withoutHints; time.Sleep(5 * time.Millisecond) {
		began := time.Now()
		if code := r.ping(id); code != http.StatusOK {
			t.Errorf("a session that is hosted here was answered %d", code)
		}
		if r.Stats().Rechecks > before {
			return began
		}
	}
	t.Errorf("the close marks were not read for %v although no hints come", withoutHints)
	return time.Now()
}

// losesHints checks that a copy made just before looks at the store when its hints
// stop, and then every 2 s. It returns when the last request began that looked.
func (r *replica) losesHints(t *testing.T, id string, made, broke time.Time) (looked time.Time) {
	t.Helper()
	looked = r.nextLook(t, id)
	first, between := looked.Sub(broke), time.Duration(0)
	if looked.Sub(made) >= sessionshare.DefaultRecheckInterval {
		t.Errorf("without hints the first look came %v after the last one, not at once", looked.Sub(made))
	}
	for between < sessionshare.DefaultRecheckInterval/2 { // one look more is no harm
		last := looked
		looked = r.nextLook(t, id)
		between = looked.Sub(last)
	}
	t.Logf("without hints the first look came after %v, the next %v later", first.Round(time.Millisecond), between.Round(time.Millisecond))
	return looked
}

// cutSubscription lets one replica reach its store, but not subscribe.
func (c *hintCluster) cutSubscription(t *testing.T, w *wire, subscribe string) (healed time.Time) {
	t.Helper()
	id, made, ok := c.everywhere(t, c.near)
	if !ok {
		t.Fatal("a session is not served everywhere")
	}
	w.refused.Store(&subscribe)
	defer w.refused.Store(nil)
	w.cut()
	looked := c.cut.losesHints(t, id, made, time.Now())
	if code := c.near.delete(id); code != http.StatusNoContent {
		t.Fatalf("DELETE was answered %d", code)
	}
	closed := time.Now()
	awaitClosed(t, c.other, id, hintLimit+grace) // its hints go on
	awaitClosed(t, c.cut, id, withoutHints)
	t.Logf("without hints DELETE was felt after %v", time.Since(closed).Round(time.Millisecond))
	if time.Since(looked) < sessionshare.DefaultRecheckInterval {
		t.Errorf("felt %v after the last look: hints were not cut, and nothing was tested", time.Since(looked))
	}
	return time.Now()
}

// awaitClosed waits until r does not serve the session.
func awaitClosed(t *testing.T, r *replica, id string, bound time.Duration) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		switch code := r.ping(id); {
		case code == http.StatusNotFound:
			return
		case code != http.StatusOK:
			t.Errorf("a session that is hosted here was answered %d", code)
		}
		if time.Since(start) > bound {
			t.Fatalf("a closed session is served after %v", bound)
		}
	}
}

// killServer kills the server and starts it again, while replicas go on.
func (c *hintCluster) killServer(t *testing.T, s storeServer) (healed time.Time) {
	t.Helper()
	id, made, ok := c.everywhere(t, c.near)
	if !ok {
		t.Fatal("a session is not served everywhere")
	}
	s.Kill()
	killed := time.Now()
	var looks sync.WaitGroup
	for _, r := range c.all {
		looks.Go(func() { r.losesHints(t, id, made, killed) })
	}
	looks.Wait()
	if code := c.near.delete(id); code != http.StatusServiceUnavailable {
		t.Errorf("with the server away DELETE was answered %d", code)
	}
	s.Restart()
	healed = time.Now()
	for _, r := range c.all {
		awaitClosed(t, r, id, withoutHints+grace) // the mark has to be stored first
	}
	t.Logf("DELETE felt everywhere %v after the restart", time.Since(healed).Round(time.Millisecond))
	return healed
}
