package sessionshare

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Both kinds of store: one with all abilities, one with the three methods only.
func bothStores(t *testing.T, f func(t *testing.T, plain setup)) {
	for name, plain := range map[string]bool{"all abilities": false, "three methods": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) { f(t, func(cfg *nodeConfig) { cfg.plain = plain }) })
		})
	}
}

// Rule 1: after a DELETE, wherever it lands, the session is 404 there at once, on
// every other replica within RecheckInterval, and for ever.
func TestDeleteAnywhereEndsEverywhere(t *testing.T) {
	for _, place := range []string{"opener", "resumed", "cold"} {
		t.Run(place, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 3, plain)
				sid := c.nodes[0].open(t)
				require.Equal(t, 200, c.nodes[1].list(sid))
				n := map[string]*node{"opener": c.nodes[0], "resumed": c.nodes[1], "cold": c.nodes[2]}[place]
				built := n.built.Load()
				require.Equal(t, 204, n.delete(sid))
				assert.Equal(t, built, n.built.Load(), "without resuming it")
				assert.Equal(t, 404, n.list(sid), "there at once")
				assert.Equal(t, 404, n.delete(sid))
				assert.Equal(t, 404, n.do("GET", sid, "").Code)
				assert.Empty(t, c.backend.keys("session."), "the record is gone")
				assert.Len(t, c.backend.keys("closed."), 1)
				time.Sleep(testRecheck)
				for range 5 {
					for _, n := range c.nodes {
						assert.Equal(t, 404, n.list(sid))
					}
					assert.Equal(t, 404, c.add().list(sid), "a replica that has just started")
					time.Sleep(testIdle)
				}
				assert.EqualValues(t, 1, n.Stats().Closed)
			})
		})
	}
}

// With a negative RecheckInterval a close is seen by the very next request.
func TestNegativeRecheckIntervalSeesACloseAtOnce(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.RecheckInterval = -1 })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		require.Equal(t, 204, b.delete(sid))
		assert.Equal(t, 404, a.list(sid))
	})
}

// Rule 1: a stream of a deleted session ends without any traffic within a minute,
// and so is a long call found out.
func TestStreamOfADeletedSessionEndsWithoutTraffic(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		stream := a.stream(sid)
		time.Sleep(10 * time.Minute)
		require.False(t, stream.ended())
		require.Equal(t, 204, b.delete(sid))
		time.Sleep(time.Minute)
		require.True(t, stream.ended())
		status, _ := stream.result()
		assert.Equal(t, 200, status)
		assert.Zero(t, a.Stats().Hosted)
	})
}

// A running call is neither cut by a DELETE, nor waited for, nor does it revive
// the session.
func TestRunningCallSurvivesDeleteAndRevivesNothing(t *testing.T) {
	for _, place := range []string{"here", "elsewhere"} {
		t.Run(place, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				call := a.call(sid, "slow")
				stream := a.stream(sid)
				d := a
				if place == "elsewhere" {
					d = b
				}
				began := time.Now()
				require.Equal(t, 204, d.delete(sid))
				assert.Zero(t, time.Since(began), "DELETE does not wait")
				time.Sleep(3 * testIdle)
				assert.Empty(t, c.backend.keys("session."), "a call that runs on revives nothing")
				assert.True(t, stream.ended())
				require.False(t, call.ended(), "the call is not cut")
				assert.Equal(t, 404, a.list(sid))
				a.letGo()
				status, body := call.result()
				assert.Equal(t, 200, status)
				assert.Contains(t, body, "done", "its answer gets out")
				assert.Equal(t, 404, a.list(sid))
				assert.Equal(t, 404, b.list(sid))
				assert.Empty(t, c.backend.keys("session."))
			})
		})
	}
}

// A call whose client has gone blocks nothing: on a copy that ends, it is
// cancelled.
func TestOrphanedCallIsCancelledWhenTheCopyEnds(t *testing.T) {
	for name, hangUp := range map[string]string{"hung up before": "before", "hangs up after": "after"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				sessions := make(chan *Session, 8)
				c := newCluster(t, 1, func(cfg *nodeConfig) { spyFactory(cfg, func(s *Session) { sessions <- s }) })
				a := c.nodes[0]
				sid := a.open(t)
				s := <-sessions
				call := a.call(sid, "slow")
				if hangUp == "before" {
					call.cancel()
					require.True(t, call.ended())
					time.Sleep(time.Minute)
					require.NoError(t, s.Context().Err(), "a client that hangs up ends nothing")
				}
				require.Equal(t, 204, a.delete(sid))
				if hangUp == "after" {
					synctest.Wait()
					require.NoError(t, s.Context().Err(), "the call still has a client")
					call.cancel()
				}
				synctest.Wait()
				assert.ErrorIs(t, context.Cause(s.Context()), ErrClosed)
			})
		})
	}
}

// A DELETE that the SDK refuses changes nothing.
func TestRefusedDeleteChangesNothing(t *testing.T) {
	for _, place := range []string{"opener", "resumed", "cold"} {
		virtual(t, func(t *testing.T) {
			_, sid, where := places(t)
			n := where[place]
			writes := n.view.writes()
			assert.Equal(t, 400, n.delete(sid, header{"Mcp-Protocol-Version", "2001-01-01"}))
			assert.Equal(t, writes, n.view.writes())
			for _, n := range where {
				assert.Equal(t, 200, n.list(sid))
			}
		})
	}
}

// A DELETE whose mark the store does not take: 503, the session is over here from
// then on, and the mark is tried again until it is stored.
func TestDeleteWhoseMarkIsNotStored(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		a.view.partition(true, false)
		assert.Equal(t, 503, a.delete(sid))
		assert.Equal(t, 404, a.list(sid), "over here")
		assert.Equal(t, 404, a.delete(sid))
		assert.Equal(t, 200, b.list(sid), "the others cannot know yet")
		time.Sleep(5 * time.Minute)
		assert.Equal(t, 404, a.list(sid), "here from now on")
		a.view.heal()
		time.Sleep(saveDelayMax + time.Second + testRecheck)
		assert.Equal(t, 404, b.list(sid), "the mark is stored in the background")
		assert.Empty(t, c.backend.keys("session."))
	})
}

// The mark that is owed is tried once more in Shutdown: nobody else knows.
func TestShutdownStoresOwedMarks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		a.view.down()
		require.Error(t, a.CloseSession(context.Background(), sid))
		require.Error(t, a.CloseEndpoint(context.Background(), Endpoint{"/other", "x"}))
		time.Sleep(10 * time.Minute)
		a.view.heal()
		require.NoError(t, a.Shutdown(context.Background()))
		assert.Len(t, c.backend.keys("closed."), 1)
		assert.Len(t, c.backend.keys("endpoint."), 1)
		assert.Equal(t, 404, b.list(sid))
	})
}

// A DELETE whose binding cannot be read: 503, and nothing else.
func TestDeleteWhoseBindingIsNotReadable(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		b.view.partition(false, true)
		writes := b.view.writes()
		assert.Equal(t, 503, b.delete(sid))
		assert.Equal(t, writes, b.view.writes())
		b.view.heal()
		assert.Equal(t, 200, b.list(sid))
		assert.Equal(t, 200, a.list(sid))
	})
}

// CloseSession ends a session that this replica hosts, does not host, or that is
// not there.
func TestCloseSession(t *testing.T) {
	for _, place := range []string{"opener", "resumed", "cold"} {
		bothStores(t, func(t *testing.T, plain setup) {
			c := newCluster(t, 3, plain)
			sid := c.nodes[0].open(t)
			require.Equal(t, 200, c.nodes[1].list(sid))
			n := map[string]*node{"opener": c.nodes[0], "resumed": c.nodes[1], "cold": c.nodes[2]}[place]
			require.NoError(t, n.CloseSession(context.Background(), sid))
			assert.Equal(t, 404, n.list(sid))
			time.Sleep(testRecheck)
			for _, n := range c.nodes {
				assert.Equal(t, 404, n.list(sid))
			}
			require.NoError(t, n.CloseSession(context.Background(), sid), "twice is no error")
			require.NoError(t, n.CloseSession(context.Background(), "no-such-session-0000"))
			require.Error(t, n.CloseSession(context.Background(), ""))
		})
	}
}

// A session that comes into being while its end is on the way does not survive
// it: a resume that had read the record before the mark was stored.
func TestDeleteDuringAResume(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		building, goOn := make(chan struct{}), make(chan struct{})
		slow := c.add(func(cfg *nodeConfig) {
			spyFactory(cfg, func(*Session) { close(building); <-goOn })
		})
		sid := a.open(t)
		resuming := slow.start("POST", sid, toolBody("echo"))
		<-building
		require.Equal(t, 204, b.delete(sid))
		time.Sleep(testRecheck + time.Millisecond)
		close(goOn)
		status, _ := resuming.result()
		assert.Equal(t, 404, status, "what was known was too old by then")
		assert.Zero(t, slow.Stats().Hosted)
		assert.Empty(t, c.backend.keys("session."))
	})
}

// The same on the replica that closes it: known there at once.
func TestDeleteDuringAResumeHere(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		building, goOn := make(chan struct{}), make(chan struct{})
		slow := c.add(func(cfg *nodeConfig) {
			spyFactory(cfg, func(*Session) { close(building); <-goOn })
		})
		sid := c.nodes[0].open(t)
		resuming := slow.start("POST", sid, toolBody("echo"))
		<-building
		require.Equal(t, 204, slow.delete(sid))
		close(goOn)
		status, _ := resuming.result()
		assert.Equal(t, 404, status)
		assert.Zero(t, slow.Stats().Hosted)
	})
}

// Rule 6: what the SDK or the host ends by itself ends no session, and the SDK's
// 404 never goes out.
func TestCopyThatTheHostClosedComesBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var last *mcp.ServerSession
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
					return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
						last = req.GetSession().(*mcp.ServerSession)
						return next(ctx, method, req)
					}
				})
				return s
			}
		})
		a := c.nodes[0]
		sid := a.open(t)
		for _, method := range []string{"POST", "GET", "note"} {
			require.Equal(t, 200, a.list(sid))
			_ = last.Close()
			switch method {
			case "POST":
				w := a.post(sid, toolBody("echo"))
				assert.Equal(t, 200, w.Code)
				assert.Contains(t, w.Body.String(), sid)
			case "note":
				assert.Equal(t, 202, a.post(sid, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`).Code)
			default:
				s := a.stream(sid)
				assert.False(t, s.ended())
				s.cancel()
				<-s.done
				_, body := s.w.result()
				assert.Contains(t, body, "id: ~")
				assert.NotContains(t, body, "not found")
			}
		}
		assert.Empty(t, c.backend.keys("closed."))
		assert.EqualValues(t, 4, a.built.Load())
		assert.Equal(t, 1, a.Stats().Hosted)
	})
}

// showTool is a tool that runs until the node lets go, and shows its SDK session.
func showTool(cfg *nodeConfig, sessions chan<- *mcp.ServerSession) {
	before := cfg.factory
	cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
		s := before(req, opts)
		s.AddTool(&mcp.Tool{Name: "show", InputSchema: map[string]any{"type": "object"}},
			func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				sessions <- req.Session
				<-cfg.n.release
				return text("done"), nil
			})
		return s
	}
}

// A call that runs when the host closes the SDK session is answered, with what it
// returns or with an error, never with an empty 200; the session goes on.
func TestCallOnACopyThatTheHostCloses(t *testing.T) {
	for _, json := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			sessions := make(chan *mcp.ServerSession, 1)
			c := newCluster(t, 1, func(cfg *nodeConfig) {
				cfg.handler.JSONResponse = json
				showTool(cfg, sessions)
			})
			a := c.nodes[0]
			sid := a.open(t)
			call := a.start("POST", sid, toolBody("show"))
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				_ = (<-sessions).Close()
			}()
			synctest.Wait()
			a.letGo()
			status, body := call.result()
			assert.Equal(t, 200, status)
			assert.Regexp(t, `"id":\d+,"(error|result)"`, body)
			<-closed
			assert.Equal(t, 200, a.list(sid))
		})
	}
}

// While the host's Close waits for a running call, the SDK takes further calls of
// the session and never answers them.
func TestCallWhileTheHostClosesTheCopy(t *testing.T) {
	t.Skip("known: the SDK gives no sign that a session is closing; the call hangs as long as the running one")
	virtual(t, func(t *testing.T) {
		sessions := make(chan *mcp.ServerSession, 1)
		c := newCluster(t, 1, func(cfg *nodeConfig) { showTool(cfg, sessions) })
		a := c.nodes[0]
		defer a.letGo()
		sid := a.open(t)
		a.start("POST", sid, toolBody("show"))
		go func() { _ = (<-sessions).Close() }()
		synctest.Wait()
		other := a.start("POST", sid, toolBody("echo"))
		time.Sleep(time.Minute)
		assert.True(t, other.ended())
	})
}

// Orphans are cancelled at once, not only when the calls that have a client are
// over.
func TestOrphanDoesNotOutliveItsCopyForOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddTool(&mcp.Tool{Name: "orphan", InputSchema: map[string]any{"type": "object"}},
					func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						<-ctx.Done()
						close(cancelled)
						return nil, ctx.Err()
					})
				return s
			}
		})
		a := c.nodes[0]
		sid := a.open(t)
		call := a.call(sid, "slow")
		orphan := a.start("POST", sid, toolBody("orphan"))
		synctest.Wait()
		orphan.cancel()
		<-orphan.done
		require.Equal(t, 204, a.delete(sid))
		select {
		case <-cancelled:
		case <-time.After(time.Second):
			assert.Fail(t, "the orphan runs on")
		}
		require.False(t, call.ended())
		a.letGo()
		_, body := call.result()
		assert.Contains(t, body, "done")
	})
}
