package sessionshare

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
)

// stampede sends 50 first requests to n at once and returns their statuses.
func stampede(n *node, sid string) map[int]int {
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			status := 0
			switch i % 5 {
			case 0:
				p := n.start("GET", sid, "")
				time.Sleep(time.Minute)
				p.cancel()
				status, _ = p.result()
			default:
				status = n.list(sid)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	wg.Wait()
	return statuses
}

// 50 first requests at once make one copy and 50 good answers.
func TestStampedeMakesOneCopy(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain, func(cfg *nodeConfig) {
			spyFactory(cfg, func(s *Session) {
				if s.Resumed() {
					time.Sleep(time.Second)
				}
			})
		})
		b := c.nodes[1]
		sid := c.nodes[0].open(t)
		assert.Equal(t, map[int]int{200: 50}, stampede(b, sid))
		assert.EqualValues(t, 1, b.built.Load())
		assert.EqualValues(t, 1, b.Stats().Resumed)
	})
}

// A failure reaches all who wait for it, and is not remembered.
func TestStampedeSharesAFailureOnce(t *testing.T) {
	for name, fail := range map[string]func() *mcp.Server{
		"nil":   func() *mcp.Server { return nil },
		"panic": func() *mcp.Server { panic("the registry exploded") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var failing atomic.Bool
				c := newCluster(t, 2, func(cfg *nodeConfig) {
					before := cfg.factory
					cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
						time.Sleep(time.Second)
						if failing.Load() {
							return fail()
						}
						return before(req, opts)
					}
				})
				b := c.nodes[1]
				sid := c.nodes[0].open(t)
				failing.Store(true)
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() { assert.Equal(t, 503, b.list(sid)) })
				}
				wg.Wait()
				assert.EqualValues(t, 1, b.built.Load(), "one attempt for all")
				assert.Equal(t, 503, b.post("", initBody).Code)
				assert.Contains(t, b.log.String(), "factory")
				failing.Store(false)
				assert.Equal(t, 200, b.list(sid), "not remembered")
				assert.NotEmpty(t, b.open(t))
			})
		})
	}
}

// A slow factory holds nobody up beyond the bound, and its copy serves those who
// come later.
func TestSlowFactory(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			if len(cfg.opts.OpenHeaders) == 0 {
				spyFactory(cfg, func(s *Session) {
					if s.Resumed() || s.Binding().Principal == "slow" {
						time.Sleep(time.Minute)
					}
				})
			}
		})
		a, b := c.nodes[0], c.nodes[1]
		bound := DefaultStoreTimeout + factoryTime
		sid := a.open(t)
		began := time.Now()
		assert.Equal(t, 503, b.list(sid))
		assert.Equal(t, bound, time.Since(began))
		call := b.start("POST", sid, pingBody)
		call.cancel()
		assert.True(t, call.ended(), "each waiter leaves with its own context")
		time.Sleep(time.Minute)
		began = time.Now()
		assert.Equal(t, 200, b.list(sid))
		assert.Zero(t, time.Since(began))
		assert.EqualValues(t, 1, b.built.Load())

		began = time.Now()
		assert.Equal(t, 503, a.post("", initBody, user("slow")).Code)
		assert.Equal(t, bound, time.Since(began))
		time.Sleep(time.Minute)
		assert.Len(t, c.backend.keys("session."), 1, "an open that nobody waited for leaves no session")
		assert.Equal(t, 1, a.Stats().Hosted)
	})
}

// The handshake spread over three replicas in parallel, in the orders that clients
// have been seen to use.
func TestHandshakeSpreadOverReplicas(t *testing.T) {
	for range 5 {
		bothStores(t, func(t *testing.T, plain setup) {
			c := newCluster(t, 3, plain)
			sid := c.nodes[0].initialize(t)
			var wg sync.WaitGroup
			var streams [3]*pending
			for i, n := range c.nodes {
				wg.Go(func() { assert.Equal(t, 202, n.post(sid, greetBody).Code) })
				wg.Go(func() { assert.Equal(t, 200, n.list(sid)) })
				wg.Go(func() { streams[i] = n.start("GET", sid, "") })
			}
			wg.Wait()
			for i, n := range c.nodes {
				time.Sleep(time.Second)
				status, body := streams[i].w.result()
				assert.Equal(t, 200, status)
				assert.Contains(t, body, "id: ~")
				assert.EqualValues(t, 1, n.built.Load())
				streams[i].cancel()
				<-streams[i].done
				assert.NotContains(t, n.log.String(), "duplicate")
			}
		})
	}
}

// If the request that triggers the resume is itself notifications/initialized, it
// is not replayed twice: handlers see it once per copy.
func TestInitializedIsSeenOncePerCopy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var greeted sync.Map // node -> *atomic.Int64
		c := newCluster(t, 3, func(cfg *nodeConfig) {
			count := new(atomic.Int64)
			greeted.Store(cfg.n, count)
			cfg.server.InitializedHandler = func(ctx context.Context, req *mcp.InitializedRequest) {
				count.Add(1)
				s, ok := SessionFromContext(ctx)
				assert.True(t, ok)
				assert.Equal(t, s.Resumed(), cfg.n.Stats().Opened == 0)
			}
		})
		sid := c.nodes[0].initialize(t)
		assert.Equal(t, 202, c.nodes[1].post(sid, greetBody).Code)
		assert.Equal(t, 200, c.nodes[2].list(sid))
		for _, n := range c.nodes {
			assert.Equal(t, 202, n.post(sid, greetBody).Code)
			assert.Equal(t, 200, n.list(sid))
			count, _ := greeted.Load(n)
			assert.EqualValues(t, 1, count.(*atomic.Int64).Load())
		}
	})
}

// A replay carries the trigger's context and headers, but none that speak of its
// body, its origin, its session or its protocol.
func TestReplayCarriesOnlyWhatIsNeutral(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			protection := http.NewCrossOriginProtection()
			cfg.handler.CrossOriginProtection = protection
		})
		sid := c.nodes[0].open(t)
		req := newRequest("POST", sid, callBody("tools/list", "{}"), header{
			"Mcp-Protocol-Version", "2025-06-18", "Mcp-Method", "tools/list", "Content-Encoding", "identity",
			"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com", "Accept", "text/*, application/*",
		})
		w := newSafeRecorder()
		c.nodes[1].ServeHTTP(w, req)
		status, body := w.result()
		assert.Equal(t, 200, status, body)
		req.Header.Set("Sec-Fetch-Site", "cross-site")
		req.Header.Set("Origin", "http://evil.example")
		req.Body = http.NoBody
		foreign := newSafeRecorder()
		c.nodes[1].ServeHTTP(foreign, req)
		status, _ = foreign.result()
		assert.Equal(t, 403, status)
		del := newRequest("DELETE", sid, "", header{"Sec-Fetch-Site", "cross-site", "Origin", "http://evil.example"})
		foreign = newSafeRecorder()
		c.nodes[1].ServeHTTP(foreign, del)
		status, _ = foreign.result()
		assert.Equal(t, 403, status, "and ends nothing")
		assert.Equal(t, 200, c.nodes[0].list(sid))
		assert.False(t, strings.Contains(c.nodes[1].log.String(), "refused"))
	})
}

// explodingEvents is an EventStore that panics when a stream is opened.
type explodingEvents struct {
	mcp.EventStore
	armed *atomic.Bool
}

func (s explodingEvents) Open(ctx context.Context, sessionID, streamID string) error {
	if s.armed.Load() {
		panic("the event store exploded")
	}
	return s.EventStore.Open(ctx, sessionID, streamID)
}

// No panic of what the host supplies gets out of a creation, which runs on a
// goroutine of the library: it would end the process.
func TestPanicsDuringACreationAreFailures(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var ids, events atomic.Bool
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			cfg.handler.EventStore = explodingEvents{mcp.NewMemoryEventStore(nil), &events}
			cfg.opts.NewSessionID = func() string {
				if ids.Load() {
					panic("the random source exploded")
				}
				return rand.Text()
			}
		})
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		ids.Store(true)
		assert.Equal(t, 503, a.post("", initBody).Code)
		ids.Store(false)
		events.Store(true)
		assert.Equal(t, 503, a.post("", initBody).Code)
		assert.Equal(t, 503, b.list(sid))
		events.Store(false)
		assert.Equal(t, 200, b.list(sid), "no lock was left behind")
		assert.NotEmpty(t, a.open(t))
	})
}
