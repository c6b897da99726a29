// Package pgstore keeps the sessions of a gateway in a table of PostgreSQL, and
// carries hints between its replicas.
package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sessionshare/sessionshare"
)

// Defaults of [Options].
const (
	DefaultTable   = "sessionshare"
	DefaultTimeout = 2 * time.Second
)

// Options say how a [Store] works. The zero value, and nil, mean the defaults.
type Options struct {
	// Table is the name of the table, with its schema if it is not found without:
	// "sessionshare" or "gateway.sessionshare". "" means [DefaultTable].
	Table string

	// Timeout bounds a call whose context has no deadline. Zero means
	// [DefaultTimeout].
	Timeout time.Duration
}

// A Store is a [sessionshare.SharedStore] in a table. Its clock is that of the
// server. Keys that have expired stay in the table until [Store.Sweep].
type Store struct {
	pool *pgxpool.Pool
	opts Options
	name pgx.Identifier // of the table
	sql  statements

	pingEvery time.Duration // shorter in tests
}

var (
	_ sessionshare.SharedStore       = (*Store)(nil)
	_ sessionshare.Toucher           = (*Store)(nil)
	_ sessionshare.BatchGetter       = (*Store)(nil)
	_ sessionshare.PutDeleter        = (*Store)(nil)
	_ sessionshare.CompareAndSwapper = (*Store)(nil)
	_ sessionshare.PubSub            = (*Store)(nil)
	_ sessionshare.Sweeper           = (*Store)(nil)
)

// New returns a store on pool, which the caller owns and closes. It asks no
// server anything, so it works while none can be reached. The table must have
// been made: see [Store.Migrate].
//
// New refuses a pool with whose settings the store could not keep its promises:
// one that may connect to any of several hosts, unless its connection string
// says
//
//	target_session_attrs=read-write
//
// since a standby lags; and one that sets synchronous_commit to off, since the
// server would confirm close marks that a crash then takes back.
func New(pool *pgxpool.Pool, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Table = cmp.Or(o.Table, DefaultTable)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	name := pgx.Identifier(strings.Split(o.Table, "."))
	for _, part := range name {
		if part == "" || len(part) > 63 {
			return nil, errors.New("pgstore: Options.Table must be TABLE or SCHEMA.TABLE")
		}
	}
	switch {
	case pool == nil:
		return nil, errors.New("pgstore: the pool is nil")
	case len(name) > 2:
		return nil, errors.New("pgstore: Options.Table must be TABLE or SCHEMA.TABLE")
	case o.Timeout < 0:
		return nil, errors.New("pgstore: Options.Timeout is negative")
	}
	if err := checkConfig(pool.Config().ConnConfig); err != nil {
		return nil, err
	}
	return &Store{pool: pool, opts: o, name: name, sql: statementsFor(name.Sanitize()), pingEvery: pingInterval}, nil
}

func checkConfig(c *pgx.ConnConfig) error {
	hosts := map[string]bool{fmt.Sprint(c.Host, c.Port): true}
	for _, f := range c.Fallbacks { // also holds the one host without TLS
		hosts[fmt.Sprint(f.Host, f.Port)] = true
	}
	if len(hosts) > 1 && c.ValidateConnect == nil {
		return errors.New("pgstore: the pool connects to any of several hosts, also to a standby, which lags, so a closed session could be served: " +
			"add target_session_attrs=read-write to the connection string")
	}
	if c.RuntimeParams["synchronous_commit"] == "off" {
		return errors.New("pgstore: with synchronous_commit=off a crash takes back close marks, and closed sessions are served again: " +
			"remove it from the connection string")
	}
	return nil
}

var (
	errTTL   = errors.New("ttl must be positive")
	errEmpty = errors.New("value must not be empty")
)

// microseconds rounds a ttl up to what PostgreSQL counts in.
func microseconds(ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, errTTL
	}
	return int64((ttl-1)/time.Microsecond) + 1, nil
}

// input checks what is to be stored.
func input(value []byte, ttl time.Duration) (int64, error) {
	if len(value) == 0 {
		return 0, errEmpty
	}
	return microseconds(ttl)
}

// bound returns a context that ends.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// exec runs one statement and returns how many rows it changed.
func (s *Store) exec(ctx context.Context, method, sql string, args ...any) (int64, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, sql, args...)
	return tag.RowsAffected(), fail(ctx, method, err)
}

// fail makes err one of this package: it is ctx.Err() if ctx has ended.
func fail(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	// A connection's timer may be ahead of the context's by a little.
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= 0 {
		<-ctx.Done()
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("pgstore: %s: %w", method, ended)
	}
	return fmt.Errorf("pgstore: %s: %w", method, err)
}
