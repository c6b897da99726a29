// Package sessionshare lets every replica of an MCP gateway, behind a plain
// round-robin load balancer, serve every request of every stateful Streamable
// HTTP session (protocol versions 2025-11-25 and older).
//
// A gateway makes one [Replica] per process, serves its mcp.Server through
// [Replica.Handler], which takes the place of mcp.NewStreamableHTTPHandler, and
// gives all replicas one [SharedStore]. A client opens its session on one replica
// and goes on at any other: same session ID, same view, same answers. A DELETE
// anywhere ends the session everywhere, and nothing revives it.
//
//	replica, err := sessionshare.New(sessionshare.Options{Store: store, Principal: whoSent})
//	server := mcp.NewServer(impl, &mcp.ServerOptions{GetSessionID: replica.GetSessionID})
//	http.Handle("/mcp", replica.Handler(func(*http.Request) *mcp.Server { return server }, nil))
//	...
//	replica.Shutdown(ctx)
package sessionshare

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/singleflight"
)

// Causes with which the context of a [Session] ends (context.Cause).
var (
	// ErrClosed: the session was closed, here or elsewhere, or has expired.
	ErrClosed = errors.New("sessionshare: session closed")
	// ErrEvicted: this replica dropped its copy; the session lives on.
	ErrEvicted = errors.New("sessionshare: copy evicted, session lives on")
	// ErrShutdown: this replica shuts down; the session lives on.
	ErrShutdown = errors.New("sessionshare: replica shut down, session lives on")
)

// ErrGone is what a callback of [Options] returns when what was asked about is
// known to be gone: the request gets 404, and a [Options.Check] that returns it
// ends the session everywhere.
var ErrGone = errors.New("sessionshare: gone")

// A StatusError is an error of a callback of [Options] that is sent to the
// client as it is: the status, the header and the text of Err.
type StatusError struct {
	Status int // 300 to 599; anything else is sent as 500
	Header http.Header
	Err    error
}

func (e *StatusError) Error() string {
	if e.Err == nil {
		return http.StatusText(e.Status)
	}
	return e.Err.Error()
}

func (e *StatusError) Unwrap() error { return e.Err }

// An Endpoint is what a session was opened on. The incarnation changes when the
// endpoint is deleted and made anew, not when it is edited; it may stay "" where
// endpoints are never deleted.
type Endpoint struct{ Name, Incarnation string }

// A Binding is fixed when a session opens: who opened it, on what, and what it
// may see.
type Binding struct {
	Principal string
	Endpoint  Endpoint
	Scope     []byte
}

// A Session is one copy of a session on this replica, as the factory and the
// handlers see it. Its methods may be called at any time, by anyone.
type Session struct {
	r       *Replica
	c       *hostedCopy // nil for Options.Ended
	digest  sessionDigest
	rec     *record
	resumed bool
	ctx     context.Context // of Context, once somebody asked for it; c.mu guards it
	local   *localData      // nil where there is a store
}

// localData is what LoadOrStore keeps where there is no store.
type localData struct {
	mu  sync.Mutex
	raw []byte // guarded by mu
}

type sessionKey struct{}

// SessionFromContext returns the session that a factory or a handler was called
// for. It knows the context of the request that the factory gets, and that of
// every handler on a server which is served through [Replica.Handler].
func SessionFromContext(ctx context.Context) (*Session, bool) {
	c, ok := ctx.Value(sessionKey{}).(*hostedCopy)
	if !ok {
		return nil, false
	}
	return &c.Session, true
}

// Binding returns what was fixed when the session opened. The caller may change
// the slice.
func (s *Session) Binding() Binding { return s.rec.binding() }

// Resumed reports whether this copy is a further one: the session was opened
// before, here or on another replica.
func (s *Session) Resumed() bool { return s.resumed }

// Digest returns what logs name the session by, 8 hexadecimal digits that are the same
// on all replicas. They are no key: that two of 10,000 sessions share them has a chance
// of one in a hundred.
func (s *Session) Digest() string { return s.digest.short() }

// Context ends with this copy, when the last call on it is over; its cause is
// ErrClosed, ErrEvicted or ErrShutdown. An idle copy of a session that was closed
// elsewhere may end with ErrEvicted, up to EvictAfter later, where the store carries
// no hints. What a factory starts for a session, such
// as a connection to an upstream server, ends with it.
func (s *Session) Context() context.Context {
	if s.c == nil {
		return s.ctx
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ctx == nil {
		s.ctx, s.c.cancel = context.WithCancelCause(s.c.origin.ctx)
		if s.c.over {
			s.c.cancel(s.c.cause)
		}
	}
	return s.ctx
}

// over returns the cause with which the copy has ended, nil if it has not.
func (s *Session) over() error {
	if s.c == nil {
		return context.Cause(s.ctx)
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.c.over {
		return nil
	}
	return s.c.cause
}

// A Replica is the part of one process in a cluster. Make one per process with
// [New]; end it with [Replica.Shutdown]. Its methods may be called concurrently.
type Replica struct {
	opts  Options
	keys  keyspace
	store *reach // nil without a store
	log   *slog.Logger

	// now is time.Now but in tests.
	now func() time.Time

	copies   sync.Map             // session ID -> *hostedCopy, those that serve
	digests  table[sessionDigest] // the same, by digest
	creating singleflight.Group
	ids      idArmory
	stats    counters
	owned    ownership
	sweeper  sweeper
	holds    holds
	closures closures
	lags     lags
	hints    hints
	asks     asks
	notes    notes
	outbox   outbox

	events   []mcp.EventStore // of all handlers; guarded by eventsMu
	eventsMu sync.Mutex

	unusableCount atomic.Int64
	unusables     sync.Map // digests of records that were logged as unusable

	draining atomic.Bool // streams are ended at once
	stopping atomic.Bool // no new call and no new copy

	// cut ends when Shutdown waits for calls no more.
	cut     context.Context
	cutCall context.CancelFunc
}

// New returns a Replica, or an error that names the field of Options that makes
// no sense. It starts nothing and calls no store.
func New(opts Options) (*Replica, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Replica{opts: opts, keys: keyspace{opts.KeyPrefix}, log: opts.Logger, now: time.Now}
	r.ids.fresh = opts.NewSessionID
	r.owned.stop = make(chan struct{})
	r.cut, r.cutCall = context.WithCancel(context.Background())
	r.sweeper.readers = make(chan struct{}, sweepReaders)
	if opts.Store != nil {
		r.store = newReach(opts.Store, opts.StoreTimeout, r.owned.run)
		r.log.Info("sessionshare: sharing sessions", "store", r.store.abilities())
	}
	r.closures.init(r)
	r.hints = hints{r: r, self: newTag(replicaTag), pulse: make(chan string, 16)}
	r.asks = asks{r: r, wake: make(chan struct{}, 1)}
	r.notes = notes{r: r}
	r.outbox = outbox{r: r}
	if r.store != nil {
		r.hints.pub, _ = as[PubSub](opts.Store)
	}
	return r, nil
}

// GetSessionID belongs into mcp.ServerOptions.GetSessionID of every server that
// is served through this Replica; a server that has it is served only so.
func (r *Replica) GetSessionID() string { return r.ids.take() }

// recheckInterval returns how often marks are read; negative: for every request.
func (r *Replica) recheckInterval() time.Duration {
	switch {
	case r.opts.RecheckInterval != 0:
		return r.opts.RecheckInterval
	case r.hints.up.Load():
		return min(hintedRecheck, r.opts.UnverifiedLimit/2)
	}
	return min(DefaultRecheckInterval, r.opts.UnverifiedLimit/2)
}

// lookup returns the copy that serves sessionID here, if any.
func (r *Replica) lookup(sessionID string) (*hostedCopy, bool) {
	v, ok := r.copies.Load(sessionID)
	if !ok {
		return nil, false
	}
	return v.(*hostedCopy), true
}

// byDigest is lookup by digest, for hints.
func (r *Replica) byDigest(d sessionDigest) (*hostedCopy, bool) { return r.digests.load(d) }

// hosted calls f for every copy that serves, until it returns false.
func (r *Replica) hosted(f func(*hostedCopy) bool) {
	r.copies.Range(func(_, v any) bool { return f(v.(*hostedCopy)) })
}

// Drain ends all streams and answers new ones with an empty stream, while calls
// go on as ever. It is for the time between failing readiness and the moment at
// which the load balancer has noticed: clients open their streams elsewhere. There
// is no way back.
func (r *Replica) Drain() {
	r.draining.Store(true)
	r.hosted(func(c *hostedCopy) bool {
		c.drainStreams()
		return true
	})
}

// Shutdown drains, refuses new calls, waits until no call runs or ctx is done,
// cancels what is left and ends all copies. It closes no session: the records
// stay, and other replicas go on. From its start on new calls get 503. It returns
// ctx.Err() if it did not wait for everything, and may be called again, then it
// waits again.
func (r *Replica) Shutdown(ctx context.Context) error {
	r.Drain()
	r.stopping.Store(true)
	r.holds.release()
	r.hosted(func(c *hostedCopy) bool {
		c.cancelOrphans()
		c.waitCalls(ctx)
		return true
	})
	r.owned.signal()
	if ctx.Err() != nil {
		r.cutCall()
	}
	r.settle()
	// Creations that were under way end by themselves, and publish nothing now.
	for first := true; ; first = false {
		r.hosted(func(c *hostedCopy) bool {
			c.end(ErrShutdown)
			return true
		})
		if !first {
			break
		}
		r.closures.flush(ctx)
	}
	err := r.owned.wait(ctx)
	if err != nil {
		r.cutCall() // also what runs on copies that had ended before
	}
	return err
}

// since returns how long ago then was, by the larger of monotonic and wall time:
// the monotonic clock of a suspended machine stands still.
func since(now, then time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

// cloneHeader returns the values of names in h, for the record.
func cloneHeader(h http.Header, names []string) http.Header {
	var out http.Header
	for _, name := range names {
		if v := h.Values(name); len(v) > 0 {
			if out == nil {
				out = http.Header{}
			}
			out[name] = append([]string(nil), v...)
		}
	}
	return out
}
