package sessionshare

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"time"
)

// Defaults of [Options].
const (
	DefaultKeyPrefix       = "mcp.sessions."
	DefaultIdleTimeout     = 24 * time.Hour
	DefaultEvictAfter      = 30 * time.Minute // or IdleTimeout, if shorter
	DefaultRecheckInterval = 2 * time.Second
	DefaultUnverifiedLimit = 30 * time.Minute // or IdleTimeout, if shorter
	DefaultStoreTimeout    = 2 * time.Second
	DefaultHoldTimeout     = 15 * time.Second
	DefaultStreamHeartbeat = 25 * time.Second

	// defaultTouches is how often an idle timeout is split into touch intervals.
	defaultTouches = 30
)

// Bounds on what a session may bring along.
const (
	maxScope  = 64 << 10  // bytes of Options.Scope
	maxParams = 128 << 10 // bytes of initialize parameters
)

// Options configures a [Replica]. All replicas of a cluster agree on Store,
// KeyPrefix, OpenHeaders and IdleTimeout, and their callbacks answer alike.
//
// Callbacks are called concurrently, on the goroutine of a request (Check also
// in the background). They answer with errors: a *[StatusError] is sent as it
// is, [ErrGone] is a 404, and any other error is doubt: the request gets a 503
// or waits and is tried again, and nothing ends.
type Options struct {
	// Store is what the replicas share. Nil means that sessions stay on the
	// replica where they were opened; all else holds all the same.
	Store SharedStore

	// Principal says who sent a request: something stable, such as issuer and
	// subject, never a token. "" is a principal like any other, which must match
	// exactly. Nil means the UserID of the TokenInfo that the SDK's auth
	// middleware left in the context, or "" without TokenInfo; a TokenInfo
	// without UserID is refused (500). Requests of one principal must carry one
	// UserID, or the SDK refuses some of them.
	Principal func(*http.Request) (string, error)

	// Endpoint says what a request addresses, as this replica serves it now. It
	// never goes back to an earlier incarnation. Nil means the path as the client
	// sent it (before any StripPrefix), without a trailing slash, and no
	// incarnation.
	Endpoint func(*http.Request) (Endpoint, error)

	// Scope says what the session may see. It is called at open only, with the
	// binding so far; the answer, at most 64 KiB, is kept in the record and given
	// to the factory on every replica ([Binding].Scope). Nil means none.
	Scope func(*http.Request, Binding) ([]byte, error)

	// OpenHeaders names the headers of the opening request that the factory sees,
	// at open and at every resume. Authorization, Cookie and Mcp-Session-Id are
	// refused, for the record is no place for credentials.
	OpenHeaders []string

	// Check is asked whether a session is still allowed, with every recheck, also
	// in the background, and at every resume. ErrGone ends the session everywhere
	// (a revoked token, a replaced endpoint); another error counts as a close
	// mark that cannot be read. It is bound by StoreTimeout. Nothing announces what
	// it would say: with RecheckInterval zero and a store that carries hints, it is
	// asked every 30 s. Nil means no check.
	Check func(context.Context, Binding) error

	// NewSessionID makes session IDs: 16 to 256 bytes of visible ASCII that
	// nobody can guess. Nil means crypto/rand.Text.
	NewSessionID func() string

	// Ended is called when this replica has closed a session (DELETE, CloseSession),
	// hosting it or not, while what [Session.LoadOrStore] has kept can still be
	// read: once per session, and never for expiry, eviction or shutdown. Who closes
	// waits for it for up to 5 s. On a store that is no [CompareAndSwapper], two
	// replicas that close a session at the same moment may both call it.
	Ended func(context.Context, *Session)

	// KeyPrefix begins every key: at most 64 bytes of [a-z0-9._-]. Replicas with
	// one store and one prefix are one cluster. "" means DefaultKeyPrefix.
	KeyPrefix string

	// IdleTimeout ends a session that had no request, no call running and no
	// stream open for so long: at least a second. Zero means DefaultIdleTimeout. A
	// session may end up to TouchInterval earlier, and keeps the IdleTimeout under
	// which it was opened when a deploy changes that.
	IdleTimeout time.Duration

	// EvictAfter drops a copy of a shared session that was not used on this
	// replica for so long; the next request resumes it. At most IdleTimeout. Zero
	// means DefaultEvictAfter, or IdleTimeout if that is shorter.
	EvictAfter time.Duration

	// RecheckInterval is for how long a copy may go on after the session was
	// closed elsewhere. Zero means DefaultRecheckInterval, or 30 s while the store
	// carries hints ([PubSub]), which tell of a close at once. Negative means that
	// every request reads the close marks, and waits for its own read.
	RecheckInterval time.Duration

	// TouchInterval is the time in which a session costs at most one write per
	// replica. Less than IdleTimeout. Zero means IdleTimeout/30.
	TouchInterval time.Duration

	// UnverifiedLimit is for how long a copy may go on while its close marks
	// cannot be read. After that its streams end and requests get 503 until the
	// store can be read. At most IdleTimeout. Zero means DefaultUnverifiedLimit,
	// or IdleTimeout if that is shorter.
	UnverifiedLimit time.Duration

	// StoreTimeout bounds every look at the store, every write, and every call of
	// Check. Zero means DefaultStoreTimeout.
	StoreTimeout time.Duration

	// HoldTimeout is for how long a request that no client sends again (an answer,
	// a notification, a GET) waits for the store to come back. Zero means
	// DefaultHoldTimeout.
	HoldTimeout time.Duration

	// StreamHeartbeat is how long a session's stream (a client's GET, not the answer
	// to a call) is silent before a comment is sent on it, so that proxies keep it
	// and a peer that has vanished is noticed: when its host resets the connection,
	// or takes nothing any more. One that cannot be reached at all is noticed when
	// the kernel gives up, which TCP_USER_TIMEOUT on the listener bounds. Zero means
	// DefaultStreamHeartbeat, negative none.
	StreamHeartbeat time.Duration

	// Logger gets what an operator should know. Sessions are named by the first 8
	// hexadecimal digits of the SHA-256 of their ID. Nil discards.
	Logger *slog.Logger
}

// withDefaults returns a copy of o with every default filled in, or an error
// that names the field at fault.
func (o Options) withDefaults() (Options, error) {
	o.OpenHeaders = slices.Clone(o.OpenHeaders)
	for i, name := range o.OpenHeaders {
		name = textproto.CanonicalMIMEHeaderKey(name)
		switch name {
		case "":
			return o, errors.New("sessionshare: Options.OpenHeaders has an empty name")
		case "Authorization", "Cookie", headerSessionID:
			return o, fmt.Errorf("sessionshare: Options.OpenHeaders names %s: credentials do not go into the record; say who sent a request with Options.Principal", name)
		}
		o.OpenHeaders[i] = name
	}
	if o.Principal == nil {
		o.Principal = tokenPrincipal
	}
	if o.Endpoint == nil {
		o.Endpoint = pathEndpoint
	}
	if o.NewSessionID == nil {
		o.NewSessionID = rand.Text
	} else if err := checkNewSessionID(o.NewSessionID()); err != nil {
		return o, err
	}
	o.KeyPrefix = cmp.Or(o.KeyPrefix, DefaultKeyPrefix)
	if !validPrefix(o.KeyPrefix) {
		return o, fmt.Errorf("sessionshare: Options.KeyPrefix must be at most %d bytes of [a-z0-9._-]", maxPrefix)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, o.setTimes()
}

// setTimes fills in the durations and checks them against each other.
func (o *Options) setTimes() error {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"IdleTimeout", o.IdleTimeout}, {"EvictAfter", o.EvictAfter}, {"TouchInterval", o.TouchInterval},
		{"UnverifiedLimit", o.UnverifiedLimit}, {"StoreTimeout", o.StoreTimeout}, {"HoldTimeout", o.HoldTimeout},
	} {
		if d.value < 0 {
			return fmt.Errorf("sessionshare: Options.%s is negative (%v)", d.field, d.value)
		}
	}
	o.IdleTimeout = cmp.Or(o.IdleTimeout, DefaultIdleTimeout)
	o.EvictAfter = cmp.Or(o.EvictAfter, min(DefaultEvictAfter, o.IdleTimeout))
	o.TouchInterval = cmp.Or(o.TouchInterval, o.IdleTimeout/defaultTouches)
	o.UnverifiedLimit = cmp.Or(o.UnverifiedLimit, min(DefaultUnverifiedLimit, o.IdleTimeout))
	o.StoreTimeout = cmp.Or(o.StoreTimeout, DefaultStoreTimeout)
	o.HoldTimeout = cmp.Or(o.HoldTimeout, DefaultHoldTimeout)
	o.StreamHeartbeat = cmp.Or(o.StreamHeartbeat, DefaultStreamHeartbeat)
	switch {
	case o.IdleTimeout < time.Second:
		return fmt.Errorf("sessionshare: Options.IdleTimeout (%v) is under a second, which stores cannot keep", o.IdleTimeout)
	case o.EvictAfter > o.IdleTimeout:
		return fmt.Errorf("sessionshare: Options.EvictAfter (%v) is over IdleTimeout (%v), after which nothing is left to evict", o.EvictAfter, o.IdleTimeout)
	case o.TouchInterval >= o.IdleTimeout:
		return fmt.Errorf("sessionshare: Options.TouchInterval (%v) must be under IdleTimeout (%v), or sessions in use expire", o.TouchInterval, o.IdleTimeout)
	case o.UnverifiedLimit > o.IdleTimeout:
		return fmt.Errorf("sessionshare: Options.UnverifiedLimit (%v) must be at most IdleTimeout (%v), or a close mark can expire unread", o.UnverifiedLimit, o.IdleTimeout)
	case o.RecheckInterval >= o.UnverifiedLimit:
		return fmt.Errorf("sessionshare: Options.RecheckInterval (%v) must be under UnverifiedLimit (%v), or copies are always in doubt", o.RecheckInterval, o.UnverifiedLimit)
	}
	return nil
}

// checkNewSessionID checks what NewSessionID made.
func checkNewSessionID(id string) error {
	if len(id) < minNewSessionID || !validSessionID(id) {
		return fmt.Errorf("sessionshare: Options.NewSessionID must return %d to %d bytes of visible ASCII (it returned %d bytes)", minNewSessionID, maxSessionID, len(id))
	}
	return nil
}
