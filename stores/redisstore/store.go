// Package redisstore keeps the sessions of a gateway in Redis, and carries
// hints between its replicas.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sessionshare/sessionshare"
)

// DefaultTimeout is [Options.Timeout] if that is zero.
const DefaultTimeout = 2 * time.Second

// Options say how a [Store] works. The zero value, and nil, mean the defaults.
type Options struct {
	// Prefix is put before every key and channel. On a Redis Cluster it must hold
	// a hash tag, such as "{mcp}", so that all keys are in one slot: a session's
	// record and close marks are read as of one moment, and that is possible
	// within one slot only. Elsewhere it may stay empty, since the library has a
	// prefix of its own.
	Prefix string

	// Timeout bounds a call whose context has no deadline. Zero means
	// [DefaultTimeout].
	Timeout time.Duration
}

// A Store is a [sessionshare.SharedStore] in a Redis database. Its clock is that
// of the server.
//
// It is no Sweeper, since the server removes what has expired.
type Store struct {
	client    redis.UniversalClient
	opts      Options
	sharded   bool          // hints go through the one node that has the slot
	pingEvery time.Duration // shorter in tests
}

var (
	_ sessionshare.SharedStore       = (*Store)(nil)
	_ sessionshare.Toucher           = (*Store)(nil)
	_ sessionshare.BatchGetter       = (*Store)(nil)
	_ sessionshare.PutDeleter        = (*Store)(nil)
	_ sessionshare.CompareAndSwapper = (*Store)(nil)
	_ sessionshare.PubSub            = (*Store)(nil)
)

// New returns a store on client, which the caller owns and closes. It asks no
// server anything, so it works while none can be reached.
//
// New refuses a client with whose settings the store could not keep its
// promises: one without
//
//	ContextTimeoutEnabled: true,
//
// in its options, since its calls would go on after their contexts have ended;
// a cluster client that reads from replicas, since those lag; and a Ring, since
// its keys move, and are lost, when one of its servers is away.
func New(client redis.UniversalClient, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	if o.Timeout < 0 {
		return nil, errors.New("redisstore: Options.Timeout is negative")
	}
	if err := checkClient(client, o); err != nil {
		return nil, err
	}
	_, cluster := client.(*redis.ClusterClient)
	return &Store{client: client, opts: o, sharded: cluster, pingEvery: pingInterval}, nil
}

func checkClient(client redis.UniversalClient, o Options) error {
	obeys := false
	switch c := client.(type) {
	case nil:
		return errors.New("redisstore: the client is nil")
	case *redis.Client:
		obeys = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		have := c.Options()
		obeys = have.ContextTimeoutEnabled
		if have.ReadOnly || have.RouteByLatency || have.RouteRandomly {
			return errors.New("redisstore: the cluster client reads from replicas, which lag, so a closed session could be served: " +
				"remove ReadOnly, RouteByLatency and RouteRandomly from redis.ClusterOptions")
		}
		if !hasHashTag(o.Prefix) {
			return errors.New("redisstore: on a Redis Cluster all keys must be in one slot, to be read as of one moment: " +
				`add Prefix: "{mcp}" to redisstore.Options`)
		}
	case *redis.Ring:
		return errors.New("redisstore: a redis.Ring moves keys when one of its servers is away, so sessions and close marks are lost: " +
			"use redis.NewClient, redis.NewFailoverClient or redis.NewClusterClient")
	default:
		return fmt.Errorf("redisstore: cannot see the settings of a %T: use a *redis.Client or a *redis.ClusterClient", client)
	}
	if !obeys {
		return errors.New("redisstore: the client's calls go on after their contexts have ended: " +
			"add ContextTimeoutEnabled: true to its options")
	}
	return nil
}

// hasHashTag reports whether a prefix alone decides the slot of a key.
func hasHashTag(prefix string) bool {
	_, after, found := strings.Cut(prefix, "{")
	return found && strings.Index(after, "}") > 0
}

var (
	errTTL   = errors.New("ttl must be positive")
	errEmpty = errors.New("value must not be empty")
)

// milliseconds rounds a ttl up to what Redis counts in.
func milliseconds(ttl time.Duration) (time.Duration, error) {
	if ttl <= 0 {
		return 0, errTTL
	}
	return max(ttl, ttl+time.Millisecond-1).Truncate(time.Millisecond), nil
}

// call runs f, which asks the server something, for no longer than ctx lasts.
//
// The client obeys the deadline of a context, but it does not notice that one
// is cancelled. So f runs on a goroutine of its own, which the client ends at
// the deadline at the latest, and f must not use what belongs to the caller.
func call[T any](s *Store, ctx context.Context, method string, f func(context.Context) (T, error)) (T, error) {
	var none T
	cancellable := ctx.Done() != nil
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
	}
	if err := ctx.Err(); err != nil {
		return none, fail(ctx, method, err)
	}
	if !cancellable {
		v, err := f(ctx)
		return v, fail(ctx, method, err)
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f(ctx)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, fail(ctx, method, r.err)
	case <-ctx.Done():
		return none, fail(ctx, method, ctx.Err())
	}
}

// fail makes err one of this package: it is ctx.Err() if ctx has ended, and it
// never shows a key or a value.
func fail(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	// The client's timer may be ahead of the context's by a little.
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= 0 {
		<-ctx.Done()
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("redisstore: %s: %w", method, ended)
	}
	// Such an answer quotes the arguments.
	if redis.HasErrorPrefix(err, "unknown") {
		return fmt.Errorf("redisstore: %s: the server does not know a command that this needs, or forbids it", method)
	}
	return fmt.Errorf("redisstore: %s: %w", method, err)
}

// valueOf turns an answer into the value of a key; nil is a missing one.
func valueOf(answer any) ([]byte, error) {
	switch v := answer.(type) {
	case nil:
		return nil, nil
	case string:
		return []byte(v), nil
	}
	return nil, fmt.Errorf("the server answered with a %T", answer)
}
