package sessionshare

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A cuttable store carries hints until its line is cut, mute, or slow.
type cuttable struct {
	hintingStore
	mute  atomic.Bool
	delay atomic.Int64

	mu  sync.Mutex // guards cut
	cut context.CancelFunc
	off atomic.Bool // subscribing fails
}

var errCut = errors.New("line is cut")

func (s *cuttable) Subscribe(ctx context.Context, channels []string, deliver func(string, []byte)) error {
	if s.off.Load() {
		return errCut
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cut = cancel
	s.mu.Unlock()
	return s.hintingStore.Subscribe(ctx, channels, func(channel string, msg []byte) {
		time.Sleep(time.Duration(s.delay.Load()))
		if !s.mute.Load() {
			deliver(channel, msg)
		}
	})
}

func (s *cuttable) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
}

// cuttableCluster makes replicas with the default RecheckInterval, each of which
// can lose its hints.
func cuttableCluster(t *testing.T, n int) (*cluster, []*cuttable) {
	var stores []*cuttable
	told := &told{by: map[*node][]string{}}
	return newCluster(t, n, told.asking, func(cfg *nodeConfig) {
		s := &cuttable{hintingStore: hintingStore{cfg.n.view}}
		stores = append(stores, s)
		cfg.opts.Store = s
		cfg.opts.RecheckInterval = 0
	}), stores
}

// With hints a DELETE, a CloseSession and a CloseEndpoint are felt on all replicas
// at once: copies, streams, calls.
func TestClosesAreFeltAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, _ := cuttableCluster(t, 3)
		for name, end := range map[string]func(sid string){
			"DELETE":       func(sid string) { require.Equal(t, 204, c.nodes[0].delete(sid)) },
			"CloseSession": func(sid string) { require.NoError(t, c.nodes[0].CloseSession(context.Background(), sid)) },
			"CloseEndpoint": func(string) {
				require.NoError(t, c.nodes[0].CloseEndpoint(context.Background(), Endpoint{"/mcp", "first"}))
			},
		} {
			if name == "CloseEndpoint" {
				continue // last: nothing can be opened after it
			}
			atOnce(t, c, name, end)
		}
		atOnce(t, c, "CloseEndpoint", func(string) {
			require.NoError(t, c.nodes[0].CloseEndpoint(context.Background(), Endpoint{"/mcp", "first"}))
		})
	})
}

func atOnce(t *testing.T, c *cluster, name string, end func(sid string)) {
	sid := c.nodes[0].openAsking(t)
	c.everywhere(sid)
	stream := c.nodes[1].stream(sid)
	time.Sleep(50 * time.Millisecond)
	var ctxs []context.Context
	for _, n := range c.nodes {
		ctxs = append(ctxs, n.hosts(t, sid).Context())
	}
	end(sid)
	time.Sleep(50 * time.Millisecond)
	assert.True(t, stream.ended(), name)
	for i, n := range c.nodes {
		assert.ErrorIs(t, context.Cause(ctxs[i]), ErrClosed, "%s, replica %d", name, i)
		assert.Equal(t, 404, n.list(sid), "%s, replica %d", name, i)
	}
}

// While hints come marks are read rarely. When they stop, noticed or not, what was
// missed is found out at once, or soon, and 2 s hold until they are back, which
// they are by themselves.
func TestHintsComeAndGo(t *testing.T) {
	for name, stop := range map[string]struct {
		off, on func(*cuttable)
		noticed time.Duration // how long it may go unnoticed
	}{
		"cut":        {func(s *cuttable) { s.off.Store(true); s.sever() }, func(s *cuttable) { s.off.Store(false) }, 10 * time.Millisecond},
		"mute":       {func(s *cuttable) { s.mute.Store(true) }, func(s *cuttable) { s.mute.Store(false) }, probeEvery + probeLost + time.Second},
		"no publish": {func(s *cuttable) { s.view().set(failPublish) }, func(s *cuttable) { s.view().heal() }, probeEvery + probeLost + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c, stores := cuttableCluster(t, 2)
				a, b := c.nodes[0], c.nodes[1]
				sid, sid2 := a.openAsking(t), a.openAsking(t)
				c.everywhere(sid)
				c.everywhere(sid2)
				require.True(t, b.hints.up.Load())
				rechecks := b.Stats().Rechecks
				for range 29 {
					time.Sleep(time.Second)
					require.Equal(t, 200, b.list(sid))
				}
				require.LessOrEqual(t, b.Stats().Rechecks-rechecks, int64(1), "marks are read rarely")

				_ = b.hosts(t, sid).recheck(context.Background(), lookMarks, true) // just looked
				stop.off(stores[1])
				require.Equal(t, 204, a.delete(sid))
				time.Sleep(stop.noticed)
				require.False(t, b.hints.up.Load())
				require.Equal(t, 404, b.list(sid), "due at once")
				require.Equal(t, 200, b.list(sid2))
				time.Sleep(time.Minute)
				require.Equal(t, 200, b.list(sid2))
				require.Equal(t, 204, a.delete(sid2))
				time.Sleep(DefaultRecheckInterval)
				require.Equal(t, 404, b.list(sid2), "2 s hold")

				stop.on(stores[1])
				time.Sleep(2 * subscribeRetry)
				require.True(t, b.hints.up.Load(), "they flow again by themselves")
				sid = a.openAsking(t)
				c.everywhere(sid)
				require.Equal(t, 204, a.delete(sid))
				time.Sleep(50 * time.Millisecond)
				require.Equal(t, 404, b.list(sid))
			})
		})
	}
}

func (s *cuttable) view() *faultView { return s.faultView }

func failPublish(c storeCall) fault {
	if c.op == "Publish" {
		return fault{err: errStoreDown}
	}
	return fault{}
}

// Hints that take their time are hints: the subscription is not given up.
func TestSlowHints(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, stores := cuttableCluster(t, 2)
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		stores[1].delay.Store(int64(700 * time.Millisecond))
		for range 600 {
			time.Sleep(time.Second)
			require.Equal(t, 200, c.nodes[1].list(sid))
			require.True(t, c.nodes[1].hints.up.Load())
		}
		require.Equal(t, 1, strings.Count(c.nodes[1].log.String(), "hints are up"), "they never were down")
	})
}

// What an outsider publishes, or a newer version, harms nobody.
func TestStrangeHints(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, _ := cuttableCluster(t, 2)
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		stream := c.nodes[1].stream(sid)
		d := string(digestOf(sid))
		for _, msg := range []string{"", "c", "c" + d, "l" + d, "l", "r", "r" + d, "o", "o" + d, "o" + d + " ", "o" + d + " session." + d,
			"o" + d + " out." + d + ".x.1", "n", "n\n", "n{}\n" + d, `n{"method":"notifications/message"}` + "\n" + d,
			"n{\"method\":\"notifications/tools/list_changed\"}\n" + d[:10], "e", "p", "z" + d} {
			c.nodes[1].hints.receive([]byte(msg))
		}
		time.Sleep(time.Second)
		require.Empty(t, stream.messages())
		require.Equal(t, 200, c.nodes[1].list(sid))
		require.False(t, stream.ended())
		stream.cancel()
	})
}

// A claim that is written late, when its stream has ended, does not stand.
func TestLateClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, _ := cuttableCluster(t, 2)
		sid := listening(t, c)
		a, b := c.nodes[0], c.nodes[1]
		stream := a.stream(sid)
		time.Sleep(time.Second)
		a.view.set(func(call storeCall) fault {
			if claimOps[call.op] && call.about(".stream.") {
				return fault{delay: time.Second}
			}
			return fault{}
		})
		a.view.calls()
		until(t, time.Minute, "no claim", func() bool { return claims(a.view) })
		stream.cancel()
		time.Sleep(3 * time.Second)
		require.Empty(t, c.backend.keys(".stream."))
		require.Error(t, b.say(t, sid, "into the void"), "fails visibly: the session has no stream")
	})
}

// claimOps are how a claim is made, and renewed.
var claimOps = map[string]bool{"Put": true, "CompareAndSwap": true}

func claims(v *faultView) bool {
	for _, c := range v.calls() {
		if claimOps[c.op] && c.about(".stream.") {
			return true
		}
	}
	return false
}

// A message that could not be handed on is an error for who said it.
func TestForwardingFailsVisibly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, _ := cuttableCluster(t, 2)
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, c.nodes[1].say(t, sid, "1"))
		c.nodes[1].view.set(failPublish)
		require.Error(t, c.nodes[1].say(t, sid, "2"))
		c.nodes[1].view.down()
		require.Error(t, c.nodes[1].say(t, sid, "3"))
		c.nodes[1].view.heal()
		require.NoError(t, c.nodes[1].say(t, sid, "4"))
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"1", "4"}, stream.said())
		stream.cancel()
	})
}

// A replica that drains sends its streams away and goes on to say what its calls
// have to say.
func TestDrainForwards(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, _ := cuttableCluster(t, 2)
		sid := listening(t, c)
		first := c.nodes[0].stream(sid)
		time.Sleep(50 * time.Millisecond)
		c.nodes[0].Drain()
		require.True(t, first.ended())
		stream := c.nodes[1].stream(sid)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, c.nodes[0].say(t, sid, "x"))
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"x"}, stream.said())
		empty := c.nodes[0].stream(sid)
		require.True(t, empty.ended())
		require.False(t, stream.ended())
		stream.cancel()
	})
}

// Shutdown in the midst of questions, streams and hints leaves nothing behind.
func TestShutdownInTheMidst(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		stream := c.nodes[1].stream(sid)
		var calls []*pending
		for _, n := range c.nodes {
			calls = append(calls, n.start(http.MethodPost, sid, askBody("elicit", "q")))
		}
		synctest.Wait()
		for _, n := range c.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = n.Shutdown(ctx)
			cancel()
		}
		for _, p := range calls {
			require.Contains(t, p.finished(t, time.Second), "error")
		}
		require.True(t, stream.ended())
	})
}
