package sessionshare

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sessionshare/sessionshare/internal/roundrobin"
)

// These tests run over TCP and in real time: the SDK's own client behind a strict
// round-robin proxy of three replicas.

// hopReplicas are the replicas of a cluster, whose tool says which one it runs on.
type hopReplicas struct {
	mu       sync.Mutex
	replicas map[int]*Replica
	opened   atomic.Int64 // streams of the client
}

// startHops starts a cluster of three.
func startHops(t *testing.T) (*roundrobin.Cluster, *hopReplicas) {
	t.Helper()
	store := NewMemoryStore()
	hops := &hopReplicas{replicas: map[int]*Replica{}}
	cluster, err := roundrobin.Start(3, roundrobin.Options{}, func(i int) (roundrobin.Node, error) {
		r, err := New(Options{Store: store})
		if err != nil {
			return roundrobin.Node{}, err
		}
		s := mcp.NewServer(&mcp.Implementation{Name: "hop"}, &mcp.ServerOptions{GetSessionID: r.GetSessionID})
		s.AddTool(&mcp.Tool{Name: "where", InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return text(fmt.Sprint(i)), nil
			})
		hops.mu.Lock()
		defer hops.mu.Unlock()
		hops.replicas[i] = r
		return roundrobin.Node{Handler: hops.hasty(r.Handler(func(*http.Request) *mcp.Server { return s }, nil)), Stop: r.Shutdown}, nil
	})
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster, hops
}

// endStreams ends the client's streams on all replicas.
func (h *hopReplicas) endStreams() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.replicas {
		r.hosted(func(c *hostedCopy) bool {
			c.mu.Lock()
			listening := c.listening()
			c.mu.Unlock()
			if listening {
				c.endStreams()
			}
			return true
		})
	}
}

// hasty asks the client to open its streams again sooner than after the second
// that it waits by itself, so that fifty ends do not take a minute.
func (h *hopReplicas) hasty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			h.opened.Add(1)
			w = &hastyWriter{ResponseWriter: w}
		}
		next.ServeHTTP(w, req)
	})
}

type hastyWriter struct {
	http.ResponseWriter
	began bool
}

func (w *hastyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *hastyWriter) Write(b []byte) (int, error) {
	if !w.began && strings.HasPrefix(string(b), "id: ") {
		w.began = true
		if _, err := w.ResponseWriter.Write([]byte("retry: 20\n")); err != nil {
			return 0, err
		}
	}
	return w.ResponseWriter.Write(b)
}

func connect(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp"}, nil)
	require.NoError(t, err)
	return session
}

func where(session *mcp.ClientSession) (string, error) {
	res, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "where", Arguments: map[string]any{}})
	if err != nil {
		return "", err
	}
	return res.Content[0].(*mcp.TextContent).Text, nil
}

// The SDK's client goes on from replica to replica, over the death and the
// restart of one, and its Close ends the session everywhere.
func TestClientBehindRoundRobin(t *testing.T) {
	cluster, _ := startHops(t)
	session := connect(t, cluster.URL())
	sid := session.ID()
	require.NotEmpty(t, sid)
	seen := map[string]bool{}
	for range 12 {
		at, err := where(session)
		require.NoError(t, err)
		seen[at] = true
	}
	assert.Len(t, seen, 3, "every replica has served it")
	cluster.Kill(1)
	for range 12 {
		at, err := where(session)
		require.NoError(t, err)
		assert.NotEqual(t, "1", at)
	}
	require.NoError(t, cluster.Restart(1))
	seen = map[string]bool{}
	for range 24 {
		at, err := where(session)
		require.NoError(t, err)
		seen[at] = true
	}
	assert.Len(t, seen, 3, "one that was just started serves it too")
	require.NoError(t, session.Close())
	require.Eventually(t, func() bool {
		gone := 0
		for i := range 3 {
			req := newRequest("POST", sid, pingBody)
			again, err := http.NewRequest("POST", cluster.ReplicaURL(i)+"/mcp", strings.NewReader(pingBody))
			if err != nil {
				return false
			}
			again.Header = req.Header
			res, err := http.DefaultClient.Do(again)
			if err != nil {
				return false
			}
			_ = res.Body.Close()
			if res.StatusCode == http.StatusNotFound {
				gone++
			}
		}
		return gone == 3
	}, 5*time.Second, 100*time.Millisecond)
}

// The SDK's Go client survives 50 ends of its stream, spread over all replicas.
// Without the block that each stream begins with, it gives up at the sixth.
func TestClientSurvivesFiftyEndsOfItsStream(t *testing.T) {
	cluster, hops := startHops(t)
	session := connect(t, cluster.URL())
	deadline := time.Now().Add(30 * time.Second)
	for i := 0; hops.opened.Load() <= 50; i++ {
		require.True(t, time.Now().Before(deadline), "the client opens its stream again each time (%d)", hops.opened.Load())
		hops.endStreams()
		time.Sleep(5 * time.Millisecond)
		if i%50 == 0 {
			_, err := where(session)
			require.NoError(t, err)
		}
	}
	_, err := where(session)
	require.NoError(t, err)
	require.NoError(t, session.Close())
}

// Many clients at once, each with a session of its own that hops.
func TestManyClientsBehindRoundRobin(t *testing.T) {
	cluster, _ := startHops(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			session := connect(t, cluster.URL())
			for range 10 {
				_, err := where(session)
				assert.NoError(t, err)
			}
			assert.NoError(t, session.Close())
		})
	}
	wg.Wait()
}
