//go:build unix

package pgstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/storeservers"
	"github.com/sessionshare/sessionshare/storetest"
)

func newPool(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newStore(t testing.TB, pool *pgxpool.Pool, opts *Options) *Store {
	t.Helper()
	s, err := New(pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, s *Store, key, value string, ttl time.Duration) {
	t.Helper()
	if err := s.Put(t.Context(), key, []byte(value), ttl); err != nil {
		t.Fatal(err)
	}
}

// TestConformance runs the suite in every mode in which a pool may send
// statements, since proxies ask for some of them.
func TestConformance(t *testing.T) {
	url, opts := os.Getenv("SESSIONSHARE_TEST_POSTGRES_URL"), storetest.Options{Precision: 20 * time.Millisecond}
	if url == "" {
		server := storeservers.Postgres(t)
		url = server.URL
		opts.Stall = func() func() {
			server.Stop()
			return server.Cont
		}
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
				return newStore(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }), nil)
			}, opts)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	const one = "postgres://user@127.0.0.1:1/db"
	for _, c := range []struct {
		name string
		url  string
		opts *Options
		says string // "" if it is taken
	}{
		{"good", one, nil, ""},
		{"TLS or not", one + "?sslmode=prefer", nil, ""},
		{"a schema", one, &Options{Table: "a.b"}, ""},
		{"no name", one, &Options{Table: "a."}, "Options.Table"},
		{"three names", one, &Options{Table: "a.b.c"}, "Options.Table"},
		{"a long name", one, &Options{Table: strings.Repeat("t", 64)}, "Options.Table"},
		{"a negative time-out", one, &Options{Timeout: -1}, "Options.Timeout"},
		{"any host", "postgres://user@127.0.0.1:1,127.0.0.1:2/db", nil, "add target_session_attrs=read-write"},
		{"the primary", "postgres://user@127.0.0.1:1,127.0.0.1:2/db?target_session_attrs=read-write", nil, ""},
		{"asynchronous commits", one + "?synchronous_commit=off", nil, "synchronous_commit=off"},
	} {
		s, err := New(newPool(t, c.url, nil), c.opts)
		switch {
		case c.says == "" && (err != nil || s == nil):
			t.Errorf("%s: %v", c.name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "pgstore: ")):
			t.Errorf("%s: got the error %v, want one that says %q", c.name, err, c.says)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("nil: no error")
	}
}

// TestFaults stops, kills and restarts one server.
func TestFaults(t *testing.T) {
	server := storeservers.Postgres(t)
	t.Run("default time-out", func(t *testing.T) {
		s := newStore(t, newPool(t, server.URL, nil), &Options{Timeout: 300 * time.Millisecond})
		server.Stop()
		defer server.Cont()
		began := time.Now()
		_, _, err := s.Get(context.Background(), "k")
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
			t.Errorf("Get from a stopped server returned %v after %v", err, took)
		}
	})
	t.Run("subscribe while stopped", func(t *testing.T) {
		s := newStore(t, newPool(t, server.URL, nil), nil)
		server.Stop()
		defer server.Cont()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		err := s.Subscribe(ctx, []string{"c"}, func(string, []byte) {})
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 500*time.Millisecond {
			t.Errorf("Subscribe returned %v after %v", err, took)
		}
	})
	t.Run("silence", func(t *testing.T) { silence(t, server) })
	t.Run("subscriptions break", func(t *testing.T) { subscriptionsBreak(t, server) })
	t.Run("restart", func(t *testing.T) { restart(t, server) })
}

// silence: a quiet subscription goes on, one to a server that hangs does not.
func silence(t *testing.T, server *storeservers.Server) {
	s := newStore(t, newPool(t, server.URL, nil), nil)
	s.pingEvery = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Subscribe(ctx, []string{"c"}, func(string, []byte) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("on a quiet channel it ended with %v, before its context", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Subscribe(t.Context(), []string{"c"}, func(string, []byte) {}) }()
	time.Sleep(250 * time.Millisecond)
	server.Stop()
	defer server.Cont()
	select {
	case err := <-ended:
		if !errors.Is(err, errSilent) {
			t.Errorf("it ended with %v, want %v", err, errSilent)
		}
	case <-time.After(5 * time.Second):
		t.Error("the subscription waits for a server that hangs")
	}
}

func subscriptionsBreak(t *testing.T, server *storeservers.Server) {
	s := newStore(t, newPool(t, server.URL, nil), nil)
	for round := range 2 {
		got, ended := make(chan string, 100), make(chan error, 1)
		go func() {
			ended <- s.Subscribe(t.Context(), []string{"c"}, func(_ string, msg []byte) { got <- string(msg) })
		}()
		deadline := time.After(10 * time.Second)
		for up := false; !up; {
			_ = s.Publish(t.Context(), "c", []byte("msg"))
			select {
			case <-got:
				up = true
			case err := <-ended:
				t.Fatalf("round %d: the subscription ended: %v", round, err)
			case <-deadline:
				t.Fatalf("round %d: nothing arrives", round)
			case <-time.After(10 * time.Millisecond):
			}
		}
		server.Kill()
		server.Restart()
		select {
		case err := <-ended:
			if err == nil || !strings.HasPrefix(err.Error(), "pgstore: Subscribe: ") {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the subscription goes on after the server was killed")
		}
	}
}

// restart kills the server under load. Meanwhile calls fail and never say that
// the key is missing; afterwards it is there.
func restart(t *testing.T, server *storeservers.Server) {
	s := newStore(t, newPool(t, server.URL, nil), nil)
	put(t, s, "k", "value", time.Hour)
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
					time.Sleep(time.Millisecond) // it fails fast
				case !found:
					misses.Add(1)
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	server.Kill()
	time.Sleep(100 * time.Millisecond)
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
}
