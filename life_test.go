package sessionshare

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A session with no request, no call and no stream for IdleTimeout is over on all
// replicas; a request before that keeps it, wherever it lands.
func TestIdleExpiry(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		for range 5 { // used on b only: the copy on a is idle, the session is not
			time.Sleep(testIdle - testTouch)
			require.Equal(t, 200, b.list(sid))
		}
		require.Equal(t, 200, a.list(sid))
		time.Sleep(testIdle)
		assert.Equal(t, 404, b.list(sid))
		assert.Equal(t, 404, a.list(sid))
		time.Sleep(2 * time.Second)
		assert.Zero(t, a.Stats().Hosted)
		assert.Zero(t, b.Stats().Hosted)
		assert.Empty(t, c.backend.keys("closed."), "rule 6: time-outs write no mark")
	})
}

// A session is never over a day, or even more than TouchInterval, too early.
func TestIdleExpiryIsNotEarly(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		time.Sleep(testTouch - time.Second) // not touched by the next request
		require.Equal(t, 200, a.list(sid))
		time.Sleep(testIdle - testTouch)
		assert.Equal(t, 200, b.list(sid))
	})
}

// A copy that nobody uses here says nothing about the session, which may be in
// use elsewhere: it is evicted, not closed, also where EvictAfter is IdleTimeout.
func TestIdleCopyElsewhereIsNotClosed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		sessions := make(chan *Session, 1)
		c := newCluster(t, 1)
		b := c.nodes[0]
		a := c.add(func(cfg *nodeConfig) { spyFactory(cfg, func(s *Session) { sessions <- s }) })
		sid := a.open(t)
		s := <-sessions
		for range 4 {
			time.Sleep(testIdle / 3)
			require.Equal(t, 200, b.list(sid))
		}
		assert.ErrorIs(t, context.Cause(s.Context()), ErrEvicted)
	})
}

// Without a store a session ends at IdleTimeout all the same, also on a machine
// that slept over it.
func TestIdleExpiryWithoutStore(t *testing.T) {
	for name, sleep := range map[string]func(n *node, d time.Duration){
		"idle":      func(_ *node, d time.Duration) { time.Sleep(d) },
		"suspended": func(n *node, d time.Duration) { n.clock.suspend(d) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.local = true })
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				assert.Equal(t, 404, b.list(sid))
				sleep(a, testIdle-time.Second)
				require.Equal(t, 200, a.list(sid))
				sleep(a, testIdle)
				assert.Equal(t, 404, a.list(sid))
			})
		})
	}
}

// At most one write per session and replica in TouchInterval, and one read in
// RecheckInterval.
func TestBusySessionCostsFewCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		a.view.calls()
		for range 3 * 60 * 4 {
			time.Sleep(250 * time.Millisecond)
			require.Equal(t, 200, a.list(sid))
		}
		reads, writes := 0, 0
		for _, call := range a.view.calls() {
			if call.write() {
				writes++
			} else {
				reads++
			}
		}
		assert.LessOrEqual(t, writes, 3)
		assert.GreaterOrEqual(t, writes, 2)
		assert.LessOrEqual(t, reads, 90)
		assert.GreaterOrEqual(t, reads, 80)
	})
}

// So they do where sessions live for seconds only.
func TestCallAndStreamKeepAShortLivedSessionAlive(t *testing.T) {
	for _, idle := range []time.Duration{1, 2, 5, 10, 29, 33} {
		idle *= time.Second
		t.Run(idle.String(), func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				short := func(cfg *nodeConfig) {
					cfg.opts.IdleTimeout = idle
					cfg.opts.EvictAfter, cfg.opts.RecheckInterval, cfg.opts.TouchInterval, cfg.opts.UnverifiedLimit = 0, 0, 0, 0
				}
				c := newCluster(t, 2, plain, short)
				a, b := c.nodes[0], c.nodes[1]
				streaming, calling := a.open(t), a.open(t)
				stream, call := a.stream(streaming), a.call(calling, "slow")
				time.Sleep(10*idle + 100*time.Millisecond)
				assert.False(t, stream.ended())
				assert.Equal(t, 200, b.list(streaming))
				assert.Equal(t, 200, b.list(calling))
				a.letGo()
				_, body := call.result()
				assert.Contains(t, body, "done")
				stream.cancel()
				time.Sleep(2 * idle)
				assert.Equal(t, 404, a.list(streaming))
				assert.Equal(t, 404, b.list(calling))
			})
		})
	}
}

// Rule 5: a running call and an open stream keep the session alive, also for
// those who ask elsewhere; what ends them ends that.
func TestCallAndStreamKeepTheSessionAlive(t *testing.T) {
	for _, kind := range []string{"call", "stream", "orphan"} {
		t.Run(kind, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				var p *pending
				if kind == "stream" {
					p = a.stream(sid)
				} else {
					p = a.call(sid, "slow")
				}
				if kind == "orphan" {
					p.cancel()
				}
				time.Sleep(3 * testIdle)
				require.Equal(t, 200, b.list(sid), "elsewhere")
				require.Equal(t, 200, a.list(sid))
				require.Equal(t, kind == "orphan", p.ended())
				p.cancel()
				a.letGo()
				<-p.done
				time.Sleep(testIdle + testTouch + time.Second)
				assert.Equal(t, 404, b.list(sid))
				assert.Equal(t, 404, a.list(sid))
			})
		})
	}
}

// Eviction drops a copy that is not used, and no other; it comes back by itself.
func TestEvictedCopiesComeBack(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.EvictAfter = 5 * time.Minute })
		a := c.nodes[0]
		idle, busy, streaming := a.open(t), a.open(t), a.open(t)
		call, stream := a.call(busy, "slow"), a.stream(streaming)
		time.Sleep(5*time.Minute + 2*time.Second)
		assert.Equal(t, 2, a.Stats().Hosted)
		assert.EqualValues(t, 1, a.Stats().Evicted)
		require.False(t, call.ended())
		require.False(t, stream.ended())
		assert.Len(t, c.backend.keys("session."), 3)
		w := a.post(idle, toolBody("echo"))
		assert.Equal(t, 200, w.Code)
		assert.Contains(t, w.Body.String(), idle)
		assert.EqualValues(t, 1, a.Stats().Resumed)
		stream.cancel()
		call.cancel()
		a.letGo()
	})
}

// A session that the store has not taken is served where it was opened, and is
// shared as soon as the store takes it. Until then it is not evicted.
func TestPinnedSessionIsSharedLater(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.EvictAfter = 5 * time.Minute })
		a, b := c.nodes[0], c.nodes[1]
		a.view.down()
		sid := a.open(t)
		assert.Equal(t, 1, a.Stats().Unsaved)
		assert.Equal(t, 404, b.list(sid))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 200, a.list(sid), "kept, though idle: nobody else knows it")
		a.view.heal()
		time.Sleep(saveDelayMax + 2*time.Second)
		assert.Zero(t, a.Stats().Unsaved)
		assert.Equal(t, 200, b.list(sid))
		require.NoError(t, a.Shutdown(context.Background()))
		assert.Equal(t, 200, b.list(sid), "the replica that opened it is gone")
	})
}

// When the store is back, what is owed to it does not wait for the pauses that have
// grown meanwhile: any write that it takes tells, and any read that it answers.
func TestOutageIsOverForAllAtOnce(t *testing.T) {
	t.Run("write", func(t *testing.T) {
		testOutageIsOver(t, true, func(t *testing.T, n *node, _ string) { n.open(t) })
	})
	t.Run("read", func(t *testing.T) {
		testOutageIsOver(t, false, func(t *testing.T, n *node, sid string) { require.Equal(t, 200, n.list(sid)) })
	})
}

func testOutageIsOver(t *testing.T, writesOnly bool, use func(t *testing.T, n *node, sid string)) {
	seldom := func(cfg *nodeConfig) { cfg.opts.TouchInterval = testIdle / 2 } // so that a recheck only reads
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, seldom)
		a, b := c.nodes[0], c.nodes[1]
		closed, shared := a.open(t), a.open(t)
		require.Equal(t, 200, b.list(closed))
		a.view.partition(true, !writesOnly)
		sid := a.open(t)
		require.Equal(t, 503, a.delete(closed), "the mark is owed")
		time.Sleep(10*time.Minute + 7*time.Second)
		a.view.heal()
		use(t, a, shared)
		time.Sleep(2*sweepTick + testRecheck)
		assert.Equal(t, 200, b.list(sid))
		assert.Equal(t, 404, b.list(closed))
	})
}

// A store that comes and goes does not get all that is owed each time that it comes.
func TestFlappingStoreIsSpared(t *testing.T) {
	puts := map[bool]int{}
	for _, flap := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			a, n := newCluster(t, 1).nodes[0], 0
			sid := a.open(t)
			a.view.set(func(call storeCall) fault {
				if n++; call.write() || flap && n%2 == 0 {
					return fault{err: errStoreDown}
				}
				return fault{}
			})
			for range 20 {
				a.open(t)
			}
			for range 600 {
				time.Sleep(time.Second)
				a.list(sid)
			}
			puts[flap] = a.view.count("Put")
		})
	}
	require.Less(t, puts[true], 6*puts[false], "%v", puts)
}

// A pinned session ends by DELETE and at IdleTimeout like any other.
func TestPinnedSessionEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		a.view.down()
		sid := a.open(t)
		assert.Equal(t, 503, a.delete(sid), "the mark is not stored: sharing may be under way")
		assert.Equal(t, 404, a.list(sid))
		other := a.open(t)
		a.view.partition(true, false)
		time.Sleep(testIdle + 2*time.Second)
		assert.Equal(t, 404, a.list(other))
		assert.Zero(t, a.Stats().Hosted)
	})
}

// A copy that owes the store a touch is not evicted: nobody else knows that the
// session lives. The touch is made up for as soon as the store takes it.
func TestOwedTouchKeepsTheCopy(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.EvictAfter = 5 * time.Minute })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		time.Sleep(2 * time.Minute)
		a.view.partition(true, false)
		require.Equal(t, 200, a.list(sid))
		time.Sleep(15 * time.Minute)
		require.Equal(t, 1, a.Stats().Hosted, "kept")
		a.view.heal()
		time.Sleep(testRecheck + 2*time.Second)
		time.Sleep(testIdle - 5*time.Second) // the record of the open has long expired
		assert.Equal(t, 200, b.list(sid))
	})
}

// A record that expired while its touches failed is written again: the copy knows
// that it was alive.
func TestOwedTouchBringsBackARecordThatExpired(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		a.view.partition(true, false)
		for range 8 {
			time.Sleep(5 * time.Minute)
			require.Equal(t, 200, a.list(sid))
		}
		require.Empty(t, c.backend.keys("session."))
		a.view.heal()
		time.Sleep(testRecheck + time.Second)
		assert.Equal(t, 200, b.list(sid))
	})
}

// A touch that was due while the marks could not be read is owed as well: a session
// in use all through an outage neither expires with its record nor is evicted.
func TestTouchIsOwedWhenMarksCannotBeRead(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.EvictAfter = 5 * time.Minute })
		a, b := c.nodes[0], c.nodes[1]
		used, idle := a.open(t), a.open(t)
		time.Sleep(testTouch - time.Second) // read, not touched: the copies outlive the records
		require.Equal(t, 200, a.list(used))
		require.Equal(t, 200, a.list(idle))
		a.view.down()
		time.Sleep(time.Minute)
		require.Equal(t, 200, a.list(idle))
		for range 9 {
			require.Equal(t, 200, a.list(used))
			time.Sleep(3 * time.Minute)
		}
		time.Sleep(71 * time.Second)
		require.Empty(t, c.backend.keys("session."))
		require.Equal(t, 200, a.list(used))
		a.view.heal()
		time.Sleep(10 * time.Second)
		assert.Equal(t, 200, a.list(used))
		assert.Equal(t, 200, b.list(used), "it is shared again")
		assert.Equal(t, 200, b.list(idle), "used two minutes after the last touch")
	})
}

// A keep-alive that nobody can answer cuts nothing: a running call goes on, new
// ones are answered.
func TestKeepAliveThatNobodyCanAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.server.KeepAlive = 10 * time.Second })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		call := a.call(sid, "slow")
		time.Sleep(5 * time.Minute)
		require.False(t, call.ended())
		for _, n := range c.nodes {
			assert.Equal(t, 200, n.list(sid))
			assert.EqualValues(t, 1, n.built.Load(), "the copy was not closed")
		}
		a.letGo()
		_, body := call.result()
		assert.Contains(t, body, "done")
	})
}

// A tool's own ping has the tool's context and is not taken for a keep-alive.
func TestPingOfAToolIsReal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddTool(&mcp.Tool{Name: "ping", InputSchema: map[string]any{"type": "object"}},
					func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						ctx, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						if err := req.Session.Ping(ctx, nil); err != nil {
							return text("no answer"), nil
						}
						return text("answered"), nil
					})
				return s
			}
		})
		a := c.nodes[0]
		sid := a.open(t)
		w := a.post(sid, toolBody("ping"))
		assert.Contains(t, w.Body.String(), `"method":"ping"`)
		assert.Contains(t, w.Body.String(), "no answer")
	})
}

// Check is asked with every recheck, also in the background: ErrGone ends the
// session everywhere, any other error counts as a mark that cannot be read.
func TestCheck(t *testing.T) {
	for _, place := range []string{"request", "stream", "resume"} {
		t.Run(place, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var revoked, doubt atomic.Bool
				c := newCluster(t, 2)
				a := c.nodes[0]
				b := c.add(func(cfg *nodeConfig) {
					cfg.opts.UnverifiedLimit = 5 * time.Minute
					cfg.opts.Check = func(_ context.Context, b Binding) error {
						assert.Equal(t, "u", b.Principal)
						switch {
						case revoked.Load():
							return ErrGone
						case doubt.Load():
							return context.DeadlineExceeded
						}
						return nil
					}
				})
				sid := a.open(t, user("u"))
				if place != "resume" {
					require.Equal(t, 200, b.list(sid, user("u")))
					doubt.Store(true)
					time.Sleep(4 * time.Minute)
					require.Equal(t, 200, b.list(sid, user("u")), "doubt ends nothing")
					time.Sleep(time.Minute)
					require.Equal(t, 503, b.list(sid, user("u")), "but not for ever")
					doubt.Store(false)
					require.Equal(t, 200, b.list(sid, user("u")))
				} else {
					doubt.Store(true)
					require.Equal(t, 503, b.list(sid, user("u")))
					doubt.Store(false)
				}
				var stream *pending
				if place == "stream" {
					stream = b.stream(sid, user("u"))
				}
				revoked.Store(true)
				time.Sleep(testRecheck)
				if place == "stream" {
					time.Sleep(time.Minute)
					require.True(t, stream.ended())
				} else {
					assert.Equal(t, 404, b.list(sid, user("u")))
				}
				time.Sleep(testRecheck)
				assert.Equal(t, 404, a.list(sid, user("u")), "it ends everywhere")
				assert.Len(t, c.backend.keys("closed."), 1)
				assert.EqualValues(t, 1, b.Stats().Closed)
			})
		})
	}
}
