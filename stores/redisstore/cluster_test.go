//go:build unix

package redisstore

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/storeservers"
	"github.com/sessionshare/sessionshare/storetest"
)

// TestCluster runs the suite on a Redis Cluster of two nodes that share the
// slots: all keys are on one of them, and clients may ask the other first.
func TestCluster(t *testing.T) {
	var nodes []*storeservers.Server
	var admins []*redis.Client
	for range 2 {
		node := storeservers.Redis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		nodes, admins = append(nodes, node), append(admins, newClient(t, node.URL))
	}
	ctx := t.Context()
	host, port, _ := net.SplitHostPort(nodes[1].Addr)
	for _, err := range []error{
		admins[0].ClusterAddSlotsRange(ctx, 0, 8191).Err(),
		admins[1].ClusterAddSlotsRange(ctx, 8192, 16383).Err(),
		admins[0].ClusterMeet(ctx, host, port).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ready := 0
		for _, admin := range admins {
			if info, err := admin.ClusterInfo(ctx).Result(); err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, "cluster_known_nodes:2") {
				ready++
			}
		}
		if ready == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the nodes do not become a cluster")
		}
	}
	first := 0
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		addr := nodes[first].Addr
		first++
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{addr}, ContextTimeoutEnabled: true,
			DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
		})
		t.Cleanup(func() { _ = client.Close() })
		s, err := New(client, &Options{Prefix: "{mcp}"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{
		Precision: 20 * time.Millisecond,
		Stall: func() func() {
			for _, n := range nodes {
				n.Stop()
			}
			return func() {
				for _, n := range nodes {
					n.Cont()
				}
			}
		},
	})
}

// TestNoClientClock looks at everything that goes to the server: there is no
// time in it, so a replica whose clock is wrong cannot do harm.
func TestNoClientClock(t *testing.T) {
	server := storeservers.Redis(t)
	client := newClient(t, server.URL)
	s, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "n", "value", time.Hour)
	seen := &hook{}
	client.AddHook(seen)
	ctx, ttl := t.Context(), 12345*time.Millisecond+1
	put(t, s, "n", "value", ttl)
	_, touch := s.Touch(ctx, "n", ttl)
	_, swap := s.CompareAndSwap(ctx, "n", []byte("value"), []byte("new"), ttl)
	_, create := s.CompareAndSwap(ctx, "n2", nil, []byte("new"), ttl)
	for _, err := range []error{touch, swap, create, s.PutDelete(ctx, "n3", []byte("1"), ttl, "n")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ttls := 0
	for _, arg := range seen.args {
		switch v := arg.(type) {
		case string:
			if u := strings.ToUpper(v); u == "EXAT" || u == "PXAT" || u == "PEXPIREAT" || u == "EXPIREAT" {
				t.Errorf("%s went to the server", v)
			}
		case int, int64:
			if n := fmt.Sprint(v); n == "12346" {
				ttls++
			} else if n != "1" { // how many keys a script has
				t.Errorf("the number %v went to the server, want the ttl in milliseconds, rounded up", v)
			}
		default:
			t.Errorf("a %T went to the server", arg)
		}
	}
	if ttls < 5 {
		t.Errorf("%d ttls went to the server, want 5", ttls)
	}
}

type hook struct {
	mu   sync.Mutex // guards args
	args []any
}

func (h *hook) note(cmds ...redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range cmds {
		if cmd.Name() == "hello" || cmd.Name() == "client" { // a new connection
			continue
		}
		h.args = append(h.args, cmd.Args()...)
	}
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(cmds...)
		return next(ctx, cmds)
	}
}

// TestLateWrites shows what the library has to live with: a Put that failed may
// be carried out later, even after a Delete. So a Delete alone closes no session.
func TestLateWrites(t *testing.T) {
	server := storeservers.Redis(t)
	s := newStore(t, server.URL, nil)
	put(t, s, "up", "value", time.Minute)
	server.Stop()
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if s.Put(ctx, fmt.Sprint("late", i), []byte("value"), time.Minute) == nil {
				t.Error("a stopped server confirmed a write")
			}
		})
	}
	wg.Wait()
	server.Cont()
	time.Sleep(300 * time.Millisecond)
	late := 0
	for i := range n {
		if _, found, _ := s.Get(t.Context(), fmt.Sprint("late", i)); found {
			late++
		}
	}
	t.Logf("%d of %d writes that had failed were carried out later", late, n)
}
