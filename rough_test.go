package sessionshare

import (
	"context"
	"fmt"
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

// What hosts, stores and clients do that they should not: it costs what it must,
// and no more.

// longer is a replica on which a deploy has made IdleTimeout longer.
func longer(cfg *nodeConfig) {
	cfg.opts.IdleTimeout, cfg.opts.TouchInterval = 24*time.Hour, 0
	cfg.opts.EvictAfter, cfg.opts.UnverifiedLimit = 24*time.Hour, 24*time.Hour
}

// A session that is in use outlives the replicas with the shorter IdleTimeout on
// which it was opened: its record has the shorter life, and is touched as often as
// that needs.
func TestIdleTimeoutMadeLonger(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		later := c.add(longer)
		sid := c.nodes[0].open(t)
		require.NoError(t, c.nodes[0].Shutdown(context.Background()))
		for range 100 {
			require.Equal(t, 200, later.list(sid))
			time.Sleep(time.Minute)
		}
	})
}

// A copy that is not used for the session's own idle timeout is evicted, not
// closed: the session may be in use elsewhere.
func TestIdleTimeoutMadeLongerEvicts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		var s *Session
		later := c.add(longer, func(cfg *nodeConfig) { spyFactory(cfg, func(of *Session) { s = of }) })
		sid := c.nodes[0].open(t)
		require.Equal(t, 200, later.list(sid))
		for range 100 {
			require.Equal(t, 200, c.nodes[0].list(sid))
			time.Sleep(time.Minute)
		}
		assert.ErrorIs(t, context.Cause(s.Context()), ErrEvicted)
		require.Equal(t, 200, later.list(sid))
	})
}

// A copy whose close mark has come and gone while it could not be read is in doubt
// (rule 3), also where the replica's own UnverifiedLimit is longer than marks of
// this session live.
func TestIdleTimeoutMadeLongerDoubts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		later := c.add(longer)
		sid := c.nodes[0].open(t)
		require.Equal(t, 200, later.list(sid))
		later.view.down()
		require.Equal(t, 204, c.nodes[0].delete(sid))
		for range 3 * testIdle / time.Minute {
			later.list(sid)
			time.Sleep(time.Minute)
		}
		require.Empty(t, c.backend.keys(keyClosed), "the mark is still there, and proves nothing")
		later.view.heal()
		require.Equal(t, 404, later.list(sid))
	})
}

// A store that hangs does not hold up the end of a session, or of an endpoint's, on
// the replica that closes it.
func TestCloseHereAtOnceWhileTheStoreHangs(t *testing.T) {
	for name, closes := range map[string]func(*node, string) error{
		"session":  func(n *node, sid string) error { return n.CloseSession(context.Background(), sid) },
		"endpoint": func(n *node, _ string) error { return n.CloseEndpoint(context.Background(), Endpoint{"/mcp", "first"}) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2)
				n := c.nodes[0]
				sid := n.open(t)
				release := n.view.hang(false, storeCall.write)
				done := make(chan error, 1)
				go func() { done <- closes(n, sid) }()
				synctest.Wait()
				require.Empty(t, done)
				require.Equal(t, 404, n.list(sid))
				release()
				<-done
				time.Sleep(testRecheck)
				require.Equal(t, 404, c.nodes[1].list(sid))
			})
		})
	}
}

// panicky is a store and an EventStore that panic where the library calls them on
// goroutines of its own.
type panicky struct {
	*MemoryStore
	mcp.EventStore
}

func (panicky) Subscribe(context.Context, []string, func(string, []byte)) error { panic("subscribe") }
func (panicky) Publish(context.Context, string, []byte) error                   { panic("publish") }
func (panicky) Sweep(context.Context) error                                     { panic("sweep") }
func (panicky) SessionClosed(context.Context, string) error                     { panic("closed") }

// A panic of what the host supplies is not the end of the process.
func TestPanicsOfTheHost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			p := panicky{NewMemoryStore(), mcp.NewMemoryEventStore(nil)}
			cfg.opts.Store, cfg.handler.EventStore = p, p
		})
		n := c.nodes[0]
		sid := n.open(t)
		time.Sleep(testIdle / 2) // the store is swept
		require.Equal(t, 200, n.list(sid))
		require.Equal(t, 204, n.delete(sid))
		synctest.Wait()
		require.Equal(t, 404, n.list(sid))
	})
}

// A name that JSON would change is refused: two first calls would both be first.
func TestLoadOrStoreName(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		s := c.nodes[0].session(t, c.nodes[0].open(t))
		_, _, err := s.LoadOrStore(context.Background(), "a\xff", []byte("1"))
		require.ErrorContains(t, err, "UTF-8")
		_, found, err := s.Load(context.Background(), "a\xff")
		require.NoError(t, err)
		require.False(t, found)
	})
}

// Progress that the SDK cannot read leaves nothing behind on the replica that asks.
func TestMalformedProgressLeavesNothing(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		call := a.start(http.MethodPost, sid, strings.Replace(askBody("elicit", "q"), `"params":{`, `"params":{"_meta":{"progressToken":"t"},`, 1))
		q := call.await(t, time.Millisecond, "elicitation/create")
		token := member(member(oneMessage(t, q.raw).params, "_meta"), "progressToken")
		require.NotEmpty(t, token)
		for i := range 20 {
			bad := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":"%d"}}`, token, i)
			require.Equal(t, 202, b.post(sid, bad).Code)
			time.Sleep(k.answerTime())
		}
		hosted := a.hosts(t, sid)
		hosted.mu.Lock()
		posts := len(hosted.posts)
		hosted.mu.Unlock()
		assert.Equal(t, 1, posts, "only the call that asks")
		require.Equal(t, 202, b.post(sid, answer(q)).Code)
		call.finished(t, k.answerTime())
	})
}

func oneMessage(t *testing.T, text string) message {
	s := scan([]byte(text))
	require.True(t, s.ok && !s.batch, text)
	return s.first
}

// stuckWriter is a ResponseWriter whose peer takes nothing any more, under a
// middleware that knows of no deadlines.
type stuckWriter struct {
	*safeRecorder
	stuck  chan struct{} // closed: Write goes on
	writes sync.Once
	first  chan struct{} // closed when Write was called
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	w.writes.Do(func() { close(w.first) })
	<-w.stuck
	return w.safeRecorder.Write(b)
}

// A GET that waits for an older one which hangs in a write ends with its client.
func TestStreamBehindStuckOneEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		n := c.nodes[0]
		sid := n.open(t)
		w := &stuckWriter{safeRecorder: newSafeRecorder(), stuck: make(chan struct{}), first: make(chan struct{})}
		over := make(chan struct{})
		go func() {
			defer close(over)
			n.ServeHTTP(w, newRequest(http.MethodGet, sid, ""))
		}()
		<-w.first
		second := n.stream(sid)
		require.False(t, second.ended())
		second.cancel()
		require.True(t, second.ended())
		close(w.stuck)
		<-over
	})
}

// A handler of notifications/initialized that asks the client something runs while
// its copy is still being made: under the race detector, on copies that are resumed
// while the client's stream is elsewhere.
func TestInitializedHandlerAsksDuringResume(t *testing.T) {
	store := NewMemoryStore()
	replica := func() *node {
		r, err := New(Options{Store: store})
		require.NoError(t, err)
		opts := &mcp.ServerOptions{GetSessionID: r.GetSessionID, InitializedHandler: func(ctx context.Context, req *mcp.InitializedRequest) {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, _ = req.Session.ListRoots(ctx, nil)
		}}
		t.Cleanup(func() { require.NoError(t, r.Shutdown(context.Background())) })
		return &node{Replica: r, Handler: r.Handler(func(*http.Request) *mcp.Server {
			return mcp.NewServer(&mcp.Implementation{Name: "test"}, opts)
		}, &mcp.StreamableHTTPOptions{JSONResponse: true})}
	}
	a, b := replica(), replica()
	var clients sync.WaitGroup
	for range 30 {
		clients.Go(func() {
			sid := a.post("", initBody).Header().Get(headerSessionID)
			stream := a.start(http.MethodGet, sid, "")
			time.Sleep(20 * time.Millisecond) // the claim is stored
			assert.Equal(t, 200, b.list(sid))
			stream.cancel()
			<-stream.done
		})
	}
	clients.Wait()
}
