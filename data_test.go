package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endings records for which sessions Options.Ended was called, where, and what it
// could read.
type endings struct {
	mu    sync.Mutex // guards calls
	calls []string
	takes time.Duration
}

func (e *endings) setup(cfg *nodeConfig) {
	n := cfg.n
	cfg.opts.Ended = func(ctx context.Context, s *Session) {
		time.Sleep(e.takes)
		data, _, err := s.Load(ctx, "upstream")
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls = append(e.calls, fmt.Sprint(n.hints.self, " ", string(data), " ", err, " ", context.Cause(s.Context())))
	}
}

func (e *endings) get() []string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.calls
	e.calls = nil
	return out
}

func endedOn(n *node, data string) string {
	return fmt.Sprint(n.hints.self, " ", data, " ", error(nil), " ", ErrClosed)
}

func (n *node) session(t *testing.T, sid string) *Session { return &n.hosts(t, sid).Session }

// Ten first calls at once on three replicas store one value, which is found on
// copies that are resumed later, for as long as the session lives.
func TestLoadOrStore(t *testing.T) {
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		ctx := context.Background()
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		_, found, err := c.nodes[0].session(t, sid).Load(ctx, "upstream")
		require.NoError(t, err)
		require.False(t, found)
		stored := make(chan string, 10)
		for i := range 10 {
			s := c.nodes[i%3].session(t, sid)
			go func() {
				actual, loaded, err := s.LoadOrStore(ctx, "upstream", []byte(fmt.Sprint(i)))
				assert.NoError(t, err)
				assert.Equal(t, !loaded, string(actual) == fmt.Sprint(i))
				stored <- string(actual)
			}()
		}
		first := <-stored
		for range 9 {
			require.Equal(t, first, <-stored)
		}
		for range 20 { // its life is that of the session, whoever uses it
			time.Sleep(testIdle / 2)
			require.Equal(t, 200, c.nodes[1].list(sid))
		}
		late := c.add()
		require.Equal(t, 200, late.list(sid))
		got, found, err := late.session(t, sid).Load(ctx, "upstream")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, first, string(got))
		got[0] = 'x' // the caller may change it
		require.Equal(t, 204, late.delete(sid))
		synctest.Wait()
		require.Empty(t, c.backend.keys(".data."))
	})
}

func TestLoadOrStoreBounds(t *testing.T) {
	bounds := func(t *testing.T, s *Session) {
		ctx := context.Background()
		for i := range maxDataNames {
			value, loaded, err := s.LoadOrStore(ctx, fmt.Sprint(i), []byte{})
			require.NoError(t, err)
			require.False(t, loaded)
			require.Empty(t, value)
		}
		_, _, err := s.LoadOrStore(ctx, "one more", []byte("x"))
		require.ErrorContains(t, err, "at most 16 names")
		_, loaded, err := s.LoadOrStore(ctx, "3", []byte("x"))
		require.NoError(t, err)
		require.True(t, loaded)
	}
	large := func(t *testing.T, s *Session) {
		ctx := context.Background()
		_, _, err := s.LoadOrStore(ctx, "a", make([]byte, maxData))
		require.Error(t, err)
		_, _, err = s.LoadOrStore(ctx, "a", make([]byte, maxData-2))
		require.NoError(t, err)
		_, _, err = s.LoadOrStore(ctx, "b", nil)
		require.NoError(t, err)
		_, _, err = s.LoadOrStore(ctx, "c", nil)
		require.Error(t, err)
		got, _, err := s.Load(ctx, "a")
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, make([]byte, maxData-2)))
	}
	for name, set := range map[string]setup{"hints": hinted, "no store": func(cfg *nodeConfig) { cfg.local = true }} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newCluster(t, 1, set).nodes[0]
				bounds(t, n.session(t, n.openAsking(t)))
				large(t, n.session(t, n.openAsking(t)))
			})
		})
	}
	onOne(t, 1, storeKinds[1], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		s := c.nodes[0].session(t, c.nodes[0].openAsking(t))
		_, _, err := s.LoadOrStore(context.Background(), "a", nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		c.nodes[0].view.down()
		_, _, err = s.Load(context.Background(), "a")
		require.ErrorIs(t, err, errStoreDown)
	})
}

// Ended is called once, on the replica that closed the session, hosting it or not,
// with the data still there; never for eviction, expiry or shutdown.
func TestEnded(t *testing.T) {
	e := &endings{}
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		data := ""
		open := func() string {
			sid := a.openAsking(t)
			if k.hinted {
				data = "x"
				_, _, err := a.session(t, sid).LoadOrStore(context.Background(), "upstream", []byte(data))
				require.NoError(t, err)
			}
			return sid
		}
		for _, n := range []*node{a, b} { // hosting it, and not
			sid := open()
			require.Equal(t, 204, n.delete(sid))
			require.Equal(t, []string{endedOn(n, data)}, e.get())
			require.Equal(t, 404, b.delete(sid))
			require.NoError(t, a.CloseSession(context.Background(), sid))
			sid = open()
			require.NoError(t, n.CloseSession(context.Background(), sid))
			require.Equal(t, []string{endedOn(n, data)}, e.get())
		}
		require.NoError(t, a.CloseSession(context.Background(), "nobody-knows-this-one"))
		sid := open()
		a.hosts(t, sid).end(ErrEvicted)
		sid2 := open()
		c.everywhere(sid2)
		time.Sleep(2 * testIdle)
		require.Equal(t, 404, a.list(sid2))
		sid = open()
		require.Equal(t, 200, b.list(sid))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, b.Shutdown(ctx))
		time.Sleep(10 * time.Second)
		require.Empty(t, e.get())
	}, e.setup)
}

// Two DELETEs at once call it once, and neither takes the data away while it
// reads; the copies and the streams have ended before it takes its time.
func TestEndedTakesItsTime(t *testing.T) {
	e := &endings{takes: 3 * time.Second}
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		_, _, err := c.nodes[0].session(t, sid).LoadOrStore(context.Background(), "upstream", []byte("x"))
		require.NoError(t, err)
		stream := c.nodes[2].stream(sid)
		var deletes []*pending
		for i := range 4 {
			deletes = append(deletes, c.nodes[i%2].start(http.MethodDelete, sid, ""))
		}
		time.Sleep(50 * time.Millisecond)
		for i, n := range c.nodes {
			require.Equal(t, 404, n.list(sid), "replica %d", i)
		}
		require.True(t, stream.ended())
		for _, p := range deletes {
			p.finished(t, 4*time.Second)
		}
		time.Sleep(5 * time.Second)
		calls := e.get()
		require.Len(t, calls, 1)
		require.Contains(t, calls[0], " x <nil>")
		require.Empty(t, c.backend.keys(".data."))
	}, e.setup)
}

// Where no hint says so either, the copy here does not serve while Ended runs.
func TestEndedHoldsNothingUp(t *testing.T) {
	e := &endings{takes: 3 * time.Second}
	onOne(t, 1, storeKinds[1], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		closing := c.nodes[0].start(http.MethodDelete, sid, "")
		require.False(t, closing.ended())
		require.Equal(t, 404, c.nodes[0].list(sid))
		closing.finished(t, 4*time.Second)
		require.Len(t, e.get(), 1)
	}, e.setup)
}

// It is called also when the mark could be stored only later, or when nobody knows
// whether it was.
func TestEndedLater(t *testing.T) {
	e := &endings{}
	onOne(t, 2, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		marks := func(call storeCall) bool { return call.about(".closed.") }
		for name, fail := range map[string]func(*faultView){
			"down":      func(v *faultView) { v.down() },
			"lost acks": func(v *faultView) { v.loseAcks(marks) },
			"late":      func(v *faultView) { v.delayWrites(3*time.Second, marks) },
		} {
			for _, n := range []*node{a, b} {
				sid := a.openAsking(t)
				_, _, err := a.session(t, sid).LoadOrStore(context.Background(), "upstream", []byte(name))
				require.NoError(t, err)
				fail(n.view)
				require.Error(t, n.CloseSession(context.Background(), sid))
				require.Error(t, n.CloseSession(context.Background(), sid))
				require.Empty(t, e.get())
				n.view.heal()
				time.Sleep(10 * time.Second)
				require.Equal(t, []string{endedOn(n, name)}, e.get())
				require.Empty(t, c.backend.keys("data."+string(digestOf(sid))))
			}
		}
	}, e.setup)
}

// Without a store it is called too, once.
func TestEndedWithoutStore(t *testing.T) {
	e := &endings{}
	virtual(t, func(t *testing.T) {
		n := newCluster(t, 1, e.setup, func(cfg *nodeConfig) { cfg.local = true }).nodes[0]
		sid := n.openAsking(t)
		_, _, err := n.session(t, sid).LoadOrStore(context.Background(), "upstream", []byte("x"))
		require.NoError(t, err)
		p, q := n.start(http.MethodDelete, sid, ""), n.start(http.MethodDelete, sid, "")
		p.finished(t, time.Second)
		q.finished(t, time.Second)
		require.Equal(t, []string{endedOn(n, "x")}, e.get())
		require.NotContains(t, n.log.String(), "Options.Ended failed")
	})
}

// What the store returns under the data key is not trusted.
func FuzzData(f *testing.F) {
	f.Add([]byte(`{"upstream":"eA=="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeData(b)
		if err == nil {
			require.LessOrEqual(t, d.size(), len(b)+strings.Count(string(b), `\`)*3+3*len(b))
		}
	})
}
