package roundrobin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// generations makes nodes that answer with their slot and how often it was
// started, and notes how they were stopped.
type generations struct {
	mu      sync.Mutex
	started [3]int
	stopped []string
}

func (g *generations) node(i int) (Node, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.started[i]++
	name := fmt.Sprintf("%c%d", 'a'+i, g.started[i])
	return Node{
		Handler: named(name),
		Stop: func(ctx context.Context) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.stopped = append(g.stopped, fmt.Sprint(name, " ", ctx.Err()))
			return nil
		},
	}, nil
}

func TestClusterLosesAndGainsReplicas(t *testing.T) {
	g := &generations{}
	c, err := Start(3, Options{}, g.node)
	require.NoError(t, err)
	defer c.Close()
	three := func() string { return get(t, c.URL()) + get(t, c.URL()) + get(t, c.URL()) }
	require.Equal(t, "a1b1c1", three())
	require.Equal(t, "b1", get(t, c.ReplicaURL(1)))

	c.Kill(1)
	c.Kill(1)
	require.Equal(t, "a1c1a1", three())
	require.Len(t, c.Proxy.Backends(), 3, "nobody told the proxy")
	url := c.ReplicaURL(1)
	require.NoError(t, c.Restart(1))
	require.Equal(t, url, c.ReplicaURL(1))
	require.ErrorContains(t, c.Restart(1), "replica 1 runs")
	require.Equal(t, "b2c1a1", three())

	require.NoError(t, c.Stop(t.Context(), 2))
	require.NoError(t, c.Stop(t.Context(), 2))
	require.Len(t, c.Proxy.Backends(), 2)
	require.Equal(t, "b2a1b2", three())

	c.Close()
	c.Close()
	require.Equal(t, []string{
		"b1 context canceled", "c1 <nil>", "a1 context canceled", "b2 context canceled",
	}, g.stopped)
}

func TestKillBreaksRunningRequests(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	c, err := Start(1, Options{}, func(int) (Node, error) {
		return Node{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			close(began)
			<-req.Context().Done()
			close(ended)
		})}, nil
	})
	require.NoError(t, err)
	defer c.Close()
	go func() {
		<-began
		c.Kill(0)
	}()
	_, err = client.Get(c.ReplicaURL(0))
	require.Error(t, err)
	<-ended
}

func TestStopWaitsForRunningRequests(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	c, err := Start(1, Options{}, func(int) (Node, error) {
		return Node{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-release
			fmt.Fprint(w, "done")
		})}, nil
	})
	require.NoError(t, err)
	defer c.Close()
	var body string
	var wg sync.WaitGroup
	wg.Go(func() { body = get(t, c.URL()) })
	<-began
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	require.NoError(t, c.Stop(t.Context(), 0))
	wg.Wait()
	require.Equal(t, "done", body)
}

func TestANodeThatCannotBeMadeLeavesNothing(t *testing.T) {
	g := &generations{}
	_, err := Start(3, Options{}, func(i int) (Node, error) {
		if i == 2 {
			return Node{}, errors.New("no licence")
		}
		return g.node(i)
	})
	require.ErrorContains(t, err, "replica 2: no licence")
	require.Len(t, g.stopped, 2)
}

func TestWatchFollowsReadiness(t *testing.T) {
	var ready [2]atomic.Bool
	var addrs []string
	for i := range ready {
		ready[i].Store(i == 0)
		addrs = append(addrs, backend(t, func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/readyz" && !ready[i].Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
	}
	never := dead(t)
	p := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := p.Watch(ctx, "/readyz", 5*time.Millisecond, addrs[0], addrs[1], never)
	require.Equal(t, []string{addrs[0]}, p.Backends(), "asked once before Watch returns")
	turns := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return fmt.Sprint(p.Backends()) == fmt.Sprint(want) }, 5*time.Second, time.Millisecond)
	}
	ready[1].Store(true)
	turns(addrs[0], addrs[1])
	ready[0].Store(false)
	turns(addrs[1])
	cancel()
	<-done
	require.Equal(t, []string{addrs[1]}, p.Backends(), "a watch that ends removes nothing")
}
