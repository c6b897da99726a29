//go:build unix

package pgstore

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sessionshare/sessionshare/internal/storeservers"
)

func TestTable(t *testing.T) {
	server := storeservers.Postgres(t)
	pool := newPool(t, server.URL, nil)
	t.Run("migrate", func(t *testing.T) { migrate(t, pool) })
	t.Run("least privileges", func(t *testing.T) { leastPrivileges(t, server, pool) })
	t.Run("sweep", func(t *testing.T) { sweeps(t, pool) })
	t.Run("touches are cheap", func(t *testing.T) { touchesAreCheap(t, pool) })
	t.Run("no client clock", func(t *testing.T) { noClientClock(t, server) })
}

// migrate: many replicas start at once, again and again.
func migrate(t *testing.T, pool *pgxpool.Pool) {
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA "Gateway"`); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"", "fresh", `Gateway.a "strange" name`} {
		s, err := New(pool, &Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := s.Migrate(t.Context()); err != nil {
					t.Errorf("table %q: %v", table, err)
				}
			})
		}
		wg.Wait()
		put(t, s, "k", "value of "+table, time.Minute)
		if v, _, err := s.Get(t.Context(), "k"); string(v) != "value of "+table {
			t.Errorf("table %q: got %q, %v", table, v, err)
		}
	}
}

// leastPrivileges: the GRANT of the README is enough for every method, Migrate
// of a table that is there included.
func leastPrivileges(t *testing.T, server *storeservers.Server, admin *pgxpool.Pool) {
	newStore(t, admin, nil)
	for _, sql := range []string{
		"CREATE ROLE gateway LOGIN",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON sessionshare TO gateway",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s := newStore(t, newPool(t, strings.Replace(server.URL, "postgres@", "gateway@", 1), nil), nil)
	ctx := t.Context()
	put(t, s, "p1", "value", time.Minute)
	_, _, get := s.Get(ctx, "p1")
	_, many := s.GetMany(ctx, []string{"p1"})
	_, touch := s.Touch(ctx, "p1", time.Minute)
	_, swap := s.CompareAndSwap(ctx, "p1", []byte("value"), []byte("new"), time.Minute)
	_, create := s.CompareAndSwap(ctx, "p2", nil, []byte("new"), time.Minute)
	for i, err := range []error{
		get, many, touch, swap, create, s.PutDelete(ctx, "p3", []byte("1"), time.Minute, "p1"),
		s.Delete(ctx, "p2"), s.Publish(ctx, "c", []byte("m")), s.Sweep(ctx),
	} {
		if err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// sweeps counts rows: only the table shows whether Sweep frees anything.
func sweeps(t *testing.T, pool *pgxpool.Pool) {
	s := newStore(t, pool, &Options{Table: "swept"})
	const expired, live = 2*sweepBatch + 500, 100
	if _, err := pool.Exec(t.Context(), `INSERT INTO swept SELECT 'old' || i, 'v'::bytea, now() - interval '1 second' FROM generate_series(1, $1) i
		UNION ALL SELECT 'new' || i, 'v'::bytea, now() + interval '1 hour' FROM generate_series(1, $2) i`, expired, live); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	var left int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM swept").Scan(&left); err != nil || left != live {
		t.Errorf("%d rows are left, want %d (%v)", left, live, err)
	}
	t.Logf("swept %d of %d rows in %v", expired, expired+live, took.Round(time.Millisecond))
}

// touchesAreCheap: most touches must not write to an index.
func touchesAreCheap(t *testing.T, pool *pgxpool.Pool) {
	s := newStore(t, pool, &Options{Table: "touched"})
	const keys, rounds = 200, 10
	value := strings.Repeat("v", 1000)
	for i := range keys {
		put(t, s, strconv.Itoa(i), value, time.Hour)
	}
	for range rounds {
		for i := range keys {
			if found, err := s.Touch(t.Context(), strconv.Itoa(i), 2*time.Hour); !found || err != nil {
				t.Fatal(found, err)
			}
		}
	}
	var all, hot int64
	for end := time.Now().Add(15 * time.Second); all < keys*rounds && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		// Each backend reports what it did when it is idle for a while.
		err := pool.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'touched'").Scan(&all, &hot)
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d touches left the index alone", hot, all)
	if hot*2 < all || all == 0 {
		t.Errorf("only %d of %d touches left the index alone", hot, all)
	}
}

// noClientClock looks at everything that goes to the server: there is no time
// in it, so a replica whose clock is wrong cannot do harm.
func noClientClock(t *testing.T, server *storeservers.Server) {
	seen := &tracer{}
	s := newStore(t, newPool(t, server.URL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen }), nil)
	seen.args = nil
	ctx, ttl := t.Context(), 12345*time.Microsecond+1
	put(t, s, "n", "value", ttl)
	_, touch := s.Touch(ctx, "n", ttl)
	_, swap := s.CompareAndSwap(ctx, "n", []byte("value"), []byte("new"), ttl)
	_, create := s.CompareAndSwap(ctx, "n2", nil, []byte("new"), ttl)
	_, _, get := s.Get(ctx, "n")
	_, many := s.GetMany(ctx, []string{"n"})
	for _, err := range []error{touch, swap, create, get, many, s.PutDelete(ctx, "n3", []byte("1"), ttl, "n"), s.Sweep(ctx)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ttls := 0
	for _, arg := range seen.args {
		switch v := arg.(type) {
		case string, []byte, []string:
		case int:
			if v != sweepBatch {
				t.Errorf("the number %d went to the server", v)
			}
		case int64:
			if ttls++; v != 12346 {
				t.Errorf("the number %d went to the server, want the ttl in microseconds, rounded up", v)
			}
		default:
			t.Errorf("a %v went to the server", reflect.TypeOf(arg))
		}
	}
	if ttls != 5 {
		t.Errorf("%d ttls went to the server, want 5", ttls)
	}
	if sql := fmt.Sprint(s.sql); strings.Contains(sql, "now()") {
		t.Errorf("a statement uses now(), which stands still while it waits: %s", sql)
	}
}

type tracer struct{ args []any }

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.args = append(t.args, data.Args...)
	return ctx
}

func (t *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
