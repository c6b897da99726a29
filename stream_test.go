package sessionshare

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every stream begins with a block that has an id and no data.
func TestStreamBeginsWithABlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		seen := map[string]bool{}
		for _, n := range c.nodes {
			s := n.stream(sid)
			require.False(t, s.ended())
			status, body := s.w.result()
			assert.Equal(t, 200, status)
			assert.Regexp(t, `^id: ~[A-Z2-7]+\n\n: ok\n\n`, body)
			block, _, _ := strings.Cut(body, "\n")
			assert.False(t, seen[block], "each stream has made progress: the id is new")
			seen[block] = true
			assert.Equal(t, "text/event-stream", s.w.sent.Get("Content-Type"))
			s.cancel()
			<-s.done
		}
	})
}

// A Last-Event-ID of the block's form is a fresh GET, on every replica.
func TestBlockAsLastEventIDIsAFreshGET(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		id := "~ABCDEFGHIJ"
		for range 10 {
			for _, n := range c.nodes {
				s := n.stream(sid, header{"Last-Event-ID", id})
				require.False(t, s.ended())
				s.cancel()
				<-s.done
				_, body := s.w.result()
				line, _, _ := strings.Cut(body, "\n")
				id = strings.TrimPrefix(line, "id: ")
				require.Less(t, len(id), 40, "it does not grow")
			}
		}
	})
}

// A GET that the SDK refuses is no newer stream.
func TestRefusedGETEndsNoStream(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1).nodes[0]
		sid := a.open(t)
		stream := a.stream(sid)
		assert.Equal(t, 400, a.do("GET", sid, "", header{"Accept", "application/json"}).Code)
		assert.Equal(t, 400, a.do("GET", sid, "", header{"Mcp-Protocol-Version", "2024-01-01"}).Code)
		synctest.Wait()
		assert.False(t, stream.ended())
		stream.cancel()
	})
}

// The newest GET of a stream wins: an earlier one is ended and waited for, and no
// client ever sees the SDK's 409.
func TestNewestStreamWins(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		first := a.stream(sid)
		second := a.stream(sid)
		assert.True(t, first.ended())
		assert.False(t, second.ended())
		var wg sync.WaitGroup
		var streams [20]*pending
		for i := range streams {
			wg.Go(func() { streams[i] = a.start("GET", sid, "") })
		}
		wg.Wait()
		synctest.Wait()
		open := 0
		for _, s := range streams {
			if !s.ended() {
				open++
				s.cancel()
			}
			status, body := s.result()
			assert.Equal(t, 200, status)
			assert.Contains(t, body, "id: ~")
		}
		assert.Equal(t, 1, open, "one stream is left")
		assert.True(t, second.ended())
		assert.Equal(t, 200, a.list(sid))
	})
}

// A GET that hangs up while it waits for the one before leaves nothing behind.
func TestStreamOfAClientThatHangsUpAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		for range 50 {
			p := a.start("GET", sid, "")
			p.cancel()
			<-p.done
		}
		s := a.stream(sid)
		assert.False(t, s.ended())
		s.cancel()
		<-s.done
	})
}

// A tool's log message outside of a call reaches the session's stream.
func TestStreamCarriesWhatTheServerSends(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddTool(&mcp.Tool{Name: "tell", InputSchema: map[string]any{"type": "object"}},
					func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						err := req.Session.NotifyProgress(context.Background(), &mcp.ProgressNotificationParams{ProgressToken: "t", Progress: 7})
						return text(fmt.Sprint(err)), nil
					})
				return s
			}
		})
		a := c.nodes[0]
		sid := a.open(t)
		s := a.stream(sid)
		for range 3 {
			w := a.post(sid, toolBody("tell"))
			assert.Contains(t, w.Body.String(), "nil")
		}
		synctest.Wait()
		s.cancel()
		<-s.done
		_, body := s.w.result()
		assert.Equal(t, 3, strings.Count(body, `"progress":7`))
	})
}

// forgetfulEvents replays nothing that it does not know, as a store that has
// purged it.
type forgetfulEvents struct {
	*mcp.MemoryEventStore
	mu     sync.Mutex
	closed int
	fail   bool
}

func (s *forgetfulEvents) SessionClosed(ctx context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return s.MemoryEventStore.SessionClosed(ctx, id)
}

func (s *forgetfulEvents) After(ctx context.Context, sid, stream string, i int) iter.Seq2[[]byte, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail {
		return func(yield func([]byte, error) bool) { yield(nil, mcp.ErrEventsPurged) }
	}
	return s.MemoryEventStore.After(ctx, sid, stream, i)
}

// A Last-Event-ID that this copy cannot replay ends the stream cleanly, with a
// block, and not the session with a 400.
func TestLastEventIDThatCannotBeReplayed(t *testing.T) {
	for _, events := range []bool{false, true} {
		t.Run(fmt.Sprintf("event store %v", events), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2, func(cfg *nodeConfig) {
					if events {
						cfg.handler.EventStore = &forgetfulEvents{MemoryEventStore: mcp.NewMemoryEventStore(nil), fail: true}
					}
				})
				sid := c.nodes[0].open(t)
				for _, n := range c.nodes {
					for _, id := range []string{"nonsense", "a_b_c", "ABCDEFGHIJKLMNOPQRSTUVWXYZ_3", "_1", "ABC_-1", "~", "~x~ABC_1", strings.Repeat("x", 5000)} {
						s := n.stream(sid, header{"Last-Event-ID", id})
						s.cancel()
						status, body := s.result()
						assert.Equal(t, 200, status, id)
						assert.Regexp(t, `^id: ~`, body, id)
						assert.NotContains(t, body, "replay")
						assert.Empty(t, s.w.sent.Get("X-Content-Type-Options"))
					}
					assert.Equal(t, 200, n.list(sid))
				}
			})
		})
	}
}

// An evicted or shut down copy purges no events of a session that lives on.
func TestEventsOutliveCopies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events := &forgetfulEvents{MemoryEventStore: mcp.NewMemoryEventStore(nil)}
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			cfg.handler.EventStore = events
			cfg.opts.EvictAfter = time.Minute
		})
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		time.Sleep(2 * time.Minute)
		require.Zero(t, a.Stats().Hosted)
		require.Equal(t, 200, a.list(sid))
		require.NoError(t, a.Shutdown(context.Background()))
		events.mu.Lock()
		defer events.mu.Unlock()
		assert.Zero(t, events.closed)
	})
}

// A POST's stream that broke is taken up again with its Last-Event-ID on the copy
// that has it.
func TestPostStreamIsTakenUpAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) { cfg.handler.EventStore = mcp.NewMemoryEventStore(nil) })
		a := c.nodes[0]
		v := header{"Mcp-Protocol-Version", "2025-11-25"}
		sid := a.open(t)
		call := a.call(sid, "slow", v)
		_, body := call.w.result()
		require.Contains(t, body, "event: prime\nid: ")
		_, id, _ := strings.Cut(body, "id: ")
		id, _, _ = strings.Cut(id, "\n")
		call.cancel()
		<-call.done
		again := a.stream(sid, v, header{"Last-Event-ID", id})
		require.False(t, again.ended())
		a.letGo()
		status, body := again.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "done")
		assert.Regexp(t, `^id: ~`, body, "it begins with the block too")

		done := a.stream(sid, v, header{"Last-Event-ID", strings.TrimSuffix(id, "_0") + "_1"})
		done.cancel()
		status, body = done.result()
		assert.Equal(t, 200, status)
		assert.Regexp(t, `^id: ~`, body, "also one that has nothing to replay")
	})
}

// A flood of ends: the stream of one session ends fifty times on all replicas and
// is always opened again.
func TestStreamsEndCleanlyOnEveryReplica(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		sid := c.nodes[0].open(t)
		for i := range 50 {
			n := c.nodes[i%3]
			s := n.stream(sid)
			require.False(t, s.ended())
			hosted, ok := n.lookup(sid)
			require.True(t, ok)
			hosted.endStreams()
			require.True(t, s.ended())
			status, body := s.result()
			assert.Equal(t, 200, status)
			assert.Regexp(t, `^id: ~[^\n]+\n\n: ok\n\n$`, body)
		}
		assert.Equal(t, 200, c.nodes[0].list(sid))
	})
}
