//go:build unix

package storelab

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// A fault is what happens to a server while the clients go on. It returns when
// all is in order again.
type fault struct {
	name  string
	cause func(storeServer, *wire)
}

var faults = []fault{
	{"server stopped for 5 s", func(s storeServer, _ *wire) {
		s.Stop()
		time.Sleep(5 * time.Second)
		s.Cont()
	}},
	{"server killed, restarted after 1.5 s", func(s storeServer, _ *wire) {
		s.Kill()
		time.Sleep(1500 * time.Millisecond)
		s.Restart()
	}},
	{"connections cut in mid-call for 3 s", func(_ storeServer, w *wire) {
		for range 15 {
			// Requests arrive, answers do not: the worst moment to be cut.
			w.deaf.Store(true)
			time.Sleep(80 * time.Millisecond)
			w.cut()
			w.deaf.Store(false)
			time.Sleep(120 * time.Millisecond)
		}
	}},
}

// TestFaults: whatever happens to the server, no session is lost that was not
// idle, none is revived, no answer is given that is not in the design, and all
// is well soon after.
func TestFaults(t *testing.T) {
	for _, b := range networked {
		t.Run(b.name, func(t *testing.T) {
			together(t)
			for _, f := range faults {
				t.Run(f.name, func(t *testing.T) {
					server, addr := b.start(t)
					w := newWire(t, addr, 0)
					underFault(t, b, f.name, func() { f.cause(server, w) }, func() sessionshare.SharedStore {
						return b.open(t, w.addr)
					})
				})
			}
		})
	}
	t.Run("SQLite", func(t *testing.T) {
		together(t)
		for _, f := range sqliteFaults {
			t.Run(f.name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "sessions.db")
				underFault(t, sqlite, f.name, func() { f.cause(t, file) }, func() sessionshare.SharedStore {
					return openSQLite(t, file)
				})
			})
		}
	})
}

// underFault runs three replicas and their clients, causes the fault, notes what
// came of it, and fails on what must not be.
func underFault(t *testing.T, b backend, name string, cause func(), open func() sessionshare.SharedStore) {
	t.Helper()
	for _, v := range observe(t, b, name, cause, open) {
		t.Error(v)
	}
}

// observe is underFault, but returns what must not be.
func observe(t *testing.T, b backend, name string, cause func(), open func() sessionshare.SharedStore) (violations []string) {
	c := &cluster{slow: b.slow, ledger: &ledger{readable: make([]time.Time, 3)}}
	for range 3 {
		c.replicas = append(c.replicas, newReplica(t, sessionshare.Options{Store: open(), RecheckInterval: recheckInterval}))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); c.clients.Wait() }()
	c.start(t, ctx)
	time.Sleep(1500 * time.Millisecond)

	c.mu.Lock()
	c.from = time.Now()
	c.mu.Unlock()
	cause()
	c.mu.Lock()
	c.healed = time.Now()
	c.mu.Unlock()
	c.awaitStores(t)
	shared := c.awaitShared(t)
	// Long enough to see that nothing is out of order any more.
	time.Sleep(time.Until(c.settled.Add(storeTimeout + grace + time.Second)))
	stop()
	c.clients.Wait()
	c.awaitShared(t)
	c.checkAll()

	c.mu.Lock()
	defer c.mu.Unlock()
	note := c.figures(b.name, name, shared)
	t.Log(note)
	if c.late > 0 {
		t.Logf("%d calls were answered 503 after StoreTimeout with nothing out of order: the machine is too busy", c.late)
	}
	if *write && b.start != nil {
		faultFigures = append(faultFigures, note)
	}
	return c.violations
}

// together lets stores be tested at once, which is mostly waiting; what is to be
// written is measured one after another.
func together(t *testing.T) {
	if !*write {
		t.Parallel()
	}
}

// awaitStores waits until every replica's store can be read and written.
func (c *cluster) awaitStores(t *testing.T) {
	t.Helper()
	for i, r := range c.replicas {
		for try := 0; ; try++ {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			_, _, err := r.store.Get(ctx, "lab.probe")
			if err == nil {
				err = r.store.Put(ctx, "lab.probe", []byte("1"), time.Minute)
			}
			cancel()
			if err == nil {
				break
			}
			if time.Since(c.healed) > 30*time.Second {
				t.Fatalf("replica %d cannot use its store 30 s after the fault: %v", i, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		c.mu.Lock()
		c.readable[i] = time.Now()
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled = time.Now()
}

// awaitShared waits until no replica owes the store a session.
func (c *cluster) awaitShared(t *testing.T) time.Duration {
	t.Helper()
	for time.Since(c.healed) < time.Minute {
		unsaved := 0
		for _, r := range c.replicas {
			unsaved += r.Stats().Unsaved
		}
		if unsaved == 0 {
			return time.Since(c.healed)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("sessions opened during the fault are not shared a minute after it")
	return 0
}

// checkAll checks every session on every replica: the open ones are served, the
// closed ones are not.
func (c *cluster) checkAll() {
	c.mu.Lock()
	all := c.sessions
	for _, s := range all {
		s.shared = true // from now on, there is no excuse
	}
	c.mu.Unlock()
	time.Sleep(closedBound - grace)
	var wg sync.WaitGroup
	defer wg.Wait()
	next := make(chan *session)
	defer close(next)
	for range 8 {
		wg.Go(func() {
			for s := range next {
				for i := range c.replicas {
					c.check(s, i)
				}
			}
		})
	}
	for _, s := range all {
		next <- s
	}
}

func (c *cluster) check(s *session, i int) {
	want := http.StatusOK
	if s.deleting {
		want = http.StatusNotFound
	}
	code := 0
	for range 3 {
		if code = c.request("call", s, i, http.MethodPost, listTools()); code != http.StatusServiceUnavailable {
			break // else the machine is too busy, or the ledger has noted it
		}
	}
	if code != want {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.violated("at the end replica %d answered %d for a session (opener %d, deleted %t by %d, opened in the fault %t), want %d",
			i, code, s.opener, s.deleting, s.closedBy, s.unsure, want)
	}
}

// A faultFigure is one row of the table in docs/STORES.md.
type faultFigure struct {
	store, fault                           string
	requests, refused, toolErrors, unknown int
	storeErrors, held                      int64
	slowest, stores, clients, shared       time.Duration
	open, closed                           int
}

var faultFigures []faultFigure

// figures sums up. l.mu is held.
func (c *cluster) figures(store, fault string, shared time.Duration) faultFigure {
	f := faultFigure{
		store: store, fault: fault, requests: c.requests, refused: c.refused, toolErrors: c.toolErrors, unknown: c.unknown,
		slowest: c.slowest, stores: c.settled.Sub(c.healed), clients: max(0, c.lastRefusal.Sub(c.healed)), shared: shared,
	}
	for _, r := range c.replicas {
		st := r.Stats()
		f.storeErrors += st.StoreErrors
		f.held += st.Held
	}
	for _, s := range c.sessions {
		if s.deleting {
			f.closed++
		} else {
			f.open++
		}
	}
	return f
}

func (f faultFigure) String() string {
	return fmt.Sprintf("%s, %s: %d requests, %d times 503, %d tool errors, %d times 404 before shared, %d store errors, %d held, slowest %v, stores back after %v, last 503 after %v, shared after %v, %d open, %d closed",
		f.store, f.fault, f.requests, f.refused, f.toolErrors, f.unknown, f.storeErrors, f.held, f.slowest, f.stores, f.clients, f.shared, f.open, f.closed)
}
