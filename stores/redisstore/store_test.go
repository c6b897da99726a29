//go:build unix

package redisstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/storeservers"
	"github.com/sessionshare/sessionshare/storetest"
)

// newClient is the client of the README.
func newClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = 1, 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, time.Second, time.Second
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newStore(t testing.TB, url string, opts *Options) *Store {
	t.Helper()
	s, err := New(newClient(t, url), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // servers that are killed make it talk
	os.Exit(m.Run())
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestConformance(t *testing.T) {
	if url := os.Getenv("SESSIONSHARE_TEST_REDIS_URL"); url != "" {
		storetest.Run(t, func(t *testing.T) sessionshare.SharedStore { return newStore(t, url, nil) }, storetest.Options{})
		return
	}
	server := storeservers.Redis(t)
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return newStore(t, server.URL, nil)
	}, storetest.Options{
		Precision: 20 * time.Millisecond,
		Stall: func() func() {
			server.Stop()
			return server.Cont
		},
	})
}

// TestPrefix: two stores with two prefixes share nothing.
func TestPrefix(t *testing.T) {
	server := storeservers.Redis(t)
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return newStore(t, server.URL, &Options{Prefix: "{mcp}:"})
	}, storetest.Options{Precision: 20 * time.Millisecond})
	a, b := newStore(t, server.URL, &Options{Prefix: "a:"}), newStore(t, server.URL, nil)
	put(t, a, "k", "value", time.Minute)
	if _, found, _ := b.Get(t.Context(), "k"); found {
		t.Error("a key is seen without its prefix")
	}
	if v, _, _ := b.Get(t.Context(), "a:k"); string(v) != "value" {
		t.Error("the prefix is not simply put before the key")
	}
}

func put(t testing.TB, s *Store, key, value string, ttl time.Duration) {
	t.Helper()
	if err := s.Put(t.Context(), key, []byte(value), ttl); err != nil {
		t.Fatal(err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := &redis.Options{ContextTimeoutEnabled: true}
	cluster := func(change func(*redis.ClusterOptions)) *redis.ClusterClient {
		o := &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true}
		change(o)
		return redis.NewClusterClient(o)
	}
	as := func(*redis.ClusterOptions) {}
	for _, c := range []struct {
		name   string
		client redis.UniversalClient
		opts   *Options
		says   string // "" if it is taken
	}{
		{"good", redis.NewClient(good), nil, ""},
		{"sentinel", redis.NewFailoverClient(&redis.FailoverOptions{ContextTimeoutEnabled: true}), nil, ""},
		{"nil", nil, nil, "nil"},
		{"no deadlines", redis.NewClient(&redis.Options{}), nil, "add ContextTimeoutEnabled: true"},
		{"sentinel, no deadlines", redis.NewFailoverClient(&redis.FailoverOptions{}), nil, "add ContextTimeoutEnabled: true"},
		{"a negative time-out", redis.NewClient(good), &Options{Timeout: -1}, "Options.Timeout"},
		{"a ring", redis.NewRing(&redis.RingOptions{}), nil, "Ring"},
		{"a cluster", cluster(as), &Options{Prefix: "{mcp}"}, ""},
		{"a cluster, no tag", cluster(as), nil, `add Prefix: "{mcp}"`},
		{"a cluster, an empty tag", cluster(as), &Options{Prefix: "{}mcp}"}, `add Prefix: "{mcp}"`},
		{"a cluster, no deadlines", cluster(func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = false }), &Options{Prefix: "{mcp}"}, "add ContextTimeoutEnabled: true"},
		{"a cluster, replicas", cluster(func(o *redis.ClusterOptions) { o.ReadOnly = true }), &Options{Prefix: "{mcp}"}, "remove ReadOnly"},
		{"a cluster, the nearest", cluster(func(o *redis.ClusterOptions) { o.RouteByLatency = true }), &Options{Prefix: "{mcp}"}, "remove ReadOnly"},
		{"another kind", struct{ redis.UniversalClient }{}, nil, "cannot see the settings"},
	} {
		s, err := New(c.client, c.opts)
		switch {
		case c.says == "" && (err != nil || s == nil):
			t.Errorf("%s: %v", c.name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "redisstore: ")):
			t.Errorf("%s: got the error %v, want one that says %q", c.name, err, c.says)
		}
		if c.client != nil && c.name != "another kind" {
			_ = c.client.Close()
		}
	}
}

// TestDefaultTimeout: without a deadline a call ends all the same.
func TestDefaultTimeout(t *testing.T) {
	server := storeservers.Redis(t)
	s := newStore(t, server.URL, &Options{Timeout: 300 * time.Millisecond})
	put(t, s, "k", "value", time.Minute)
	server.Stop()
	defer server.Cont()
	began := time.Now()
	_, _, err := s.Get(context.Background(), "k")
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("Get from a stopped server returned %v after %v", err, took)
	}
}

// TestRestart kills the server under load. Meanwhile calls fail and never say
// that the key is missing; afterwards it is there, for the server kept it.
func TestRestart(t *testing.T) {
	server := storeservers.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStore(t, server.URL, nil)
	put(t, s, "k", "value", time.Hour)
	if swapped, err := s.CompareAndSwap(t.Context(), "c", nil, []byte("1"), time.Hour); !swapped || err != nil {
		t.Fatal(swapped, err)
	}
	var misses, errs atomic.Int32
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				_, found, err := s.Get(ctx, "k")
				cancel()
				switch {
				case err != nil:
					errs.Add(1)
				case !found:
					misses.Add(1)
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	server.Kill()
	time.Sleep(300 * time.Millisecond)
	server.Restart()
	back := time.Now()
	for {
		if _, found, err := s.Get(t.Context(), "k"); err == nil && found {
			break
		}
		if time.Since(back) > 10*time.Second {
			t.Fatal("no answer 10 s after the restart")
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("first answer %v after the restart, %d errors", time.Since(back).Round(time.Millisecond), errs.Load())
	close(stop)
	wg.Wait()
	if misses.Load() > 0 || errs.Load() == 0 {
		t.Errorf("%d of the calls said that the key is missing, %d failed", misses.Load(), errs.Load())
	}
	// The server has forgotten the script.
	if swapped, err := s.CompareAndSwap(t.Context(), "c", []byte("1"), []byte("2"), time.Hour); !swapped || err != nil {
		t.Errorf("CompareAndSwap after the restart: %t, %v", swapped, err)
	}
}

// TestLeastPrivileges: the ACL of the README is enough for everything.
func TestLeastPrivileges(t *testing.T) {
	server := storeservers.Redis(t)
	const acl = "on >secret resetkeys ~mcp.sessions.* resetchannels &mcp.sessions.* -@all " +
		"+get +mget +set +del +pexpire +eval +evalsha +multi +exec +publish +subscribe +ping +hello"
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "ACL SETUSER gateway "+acl+"\n") {
		t.Error("README.md has another ACL than this test")
	}
	rules := []any{"ACL", "SETUSER", "gateway"}
	for rule := range strings.FieldsSeq(acl) {
		rules = append(rules, rule)
	}
	if err := newClient(t, server.URL).Do(t.Context(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(server.URL, "redis://", "redis://gateway:secret@", 1)
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return newStore(t, url, &Options{Prefix: "mcp.sessions."})
	}, storetest.Options{Precision: 20 * time.Millisecond})
	if err := newStore(t, url, nil).Put(t.Context(), "other", []byte("value"), time.Minute); err == nil {
		t.Error("a key of somebody else can be written")
	}
}

// BenchmarkGet shows what it costs that a call notices a cancelled context.
func BenchmarkGet(b *testing.B) {
	s := newStore(b, storeservers.Redis(b).URL, nil)
	if err := s.Put(context.Background(), "k", make([]byte, 512), time.Hour); err != nil {
		b.Fatal(err)
	}
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{"background": context.Background(), "cancellable": cancellable} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, found, err := s.Get(ctx, "k"); !found || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}
