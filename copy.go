package sessionshare

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A hostedCopy is the SDK session by which this replica hosts a session, with
// the SDK handler that serves it and nothing else. It is made by resume.go,
// serves while it stands in Replica.copies, and then ends: it takes no new
// request, its streams end, what runs on it is finished, and the SDK session is
// closed. A new copy of the same session may be made meanwhile; they share
// nothing.
type hostedCopy struct {
	Session
	h   *handler
	id  string
	tag string // of this copy in the cluster, see ask.go

	// Set while the copy is made, fixed once it is published.
	sdk      http.Handler // an mcp.StreamableHTTPHandler of this copy's own
	server   *mcp.Server
	arming   *arming            // non-nil while the SDK is to take the ID
	origin   origin             // what internal requests look like
	session  *mcp.ServerSession // as the middleware saw it
	protocol string             // as negotiated by session
	greeted  bool               // notifications/initialized was replayed

	mu      sync.Mutex              // guards all below, and Session.ctx
	ending  bool                    // no longer serves; never unset
	cause   error                   // why
	over    bool                    // nothing runs any more
	cancel  context.CancelCauseFunc // of Session.ctx; nil until somebody asked for that
	uses    int                     // admitted requests that have not left
	quiet   chan struct{}
	posts   []*post   // few at a time
	running int       // handlers that run for clients
	used    time.Time // when the last use, handler or stream ended
	asking  int       // questions that handlers have out
	rare    *rarely   // nil until it is needed
	standing

	// The session's stream, see stream.go, listen.go and forward.go.
	streams map[string]*clientStream

	stateMu    waitLock     // guards state, applied and stateWrote; never taken while mu is held
	state      sessionState // all that is known
	applied    sessionState // what the SDK session has of it
	stateWrote time.Time    // when it was last put on a store that cannot swap
	stateKnown atomic.Bool  // there is any
	stateOwed  atomic.Bool  // the store may not have all of it
	stateLate  atomic.Bool  // a recheck could not sync it
}

// rarely is what few copies need. hostedCopy.mu guards it.
type rarely struct {
	takes   int // how often another replica took the client's stream, lately
	takenAt time.Time

	cancels []time.Time // when cancellations of calls elsewhere were noted, lately

	saveAt    time.Time // when saving is tried again
	saveDelay time.Duration

	// Of the session's stream, see forward.go.
	holder    string // the replica that what is sent outside a call goes to
	forwarded int64  // messages sent there
	sent      sentKeys
	seen      int // events that have left, by the SDK's count
}

// holder returns the replica that what the copy sends outside a call goes to; ""
// for none. c.mu is held.
func (c *hostedCopy) holder() string {
	if c.rare == nil {
		return ""
	}
	return c.rare.holder
}

// setHolder is called with every look, and for most sessions with none. c.mu is
// held.
func (c *hostedCopy) setHolder(holder string) {
	if holder != "" || c.rare != nil {
		c.rarely().holder = holder
	}
}

// rarely returns what few copies need. c.mu is held.
func (c *hostedCopy) rarely() *rarely {
	if c.rare == nil {
		c.rare = &rarely{}
	}
	return c.rare
}

// A post is one POST on a copy, from admission until it is answered and its
// handlers have returned, whichever is later: a client that hangs up leaves its
// handler running.
type post struct {
	header   http.Header
	calls    []rawID  // what the client waits for
	one      [1]rawID // room for calls: most posts have one
	served   bool     // ServeHTTP has returned
	running  int      // handlers
	begun    time.Time
	internal bool // sent by this library: a replay, a cancellation
	awaited  bool // internal, and its one handler has not begun
	unnoted  bool // its one call runs, and had not been cancelled on another replica when that was looked for

	stream *postStream // nil without an EventStore

	// handedOver says that a handler has ended the answer's stream on purpose
	// (CloseSSEStream): the client takes the answer up with a GET. Guarded by
	// hostedCopy.mu.
	handedOver bool
}

// headerIdentity is how a handler is matched with the POST that called it. The
// header map of the request is the one thing of it that the SDK shows a handler
// (RequestExtra.Header); while the post holds the map, no other has its address.
func headerIdentity(h http.Header) uintptr { return reflect.ValueOf(h).Pointer() }

// enter takes a use of the copy, unless it is ending. The caller must leave, which
// reads no clock: what takes long, a handler or a stream, notes its own end.
func (c *hostedCopy) enter(now time.Time) (look lookKind, ok bool) {
	c.mu.Lock()
	if !c.ending && c.overNow(now) {
		c.mu.Unlock()
		c.end(ErrClosed)
		return lookNone, false
	}
	defer c.mu.Unlock()
	if c.ending {
		return lookNone, false
	}
	c.uses++
	c.used = now
	if !c.owed.IsZero() && since(now, c.owed) < c.rec.idle() {
		c.owed = now // this use is owed to the store too, whoever looks next
	}
	return c.lookDue(now), true
}

// overNow reports whether a session that no store knows is over for lack of use:
// the sweeper may be late, and a process that was suspended has not swept at all.
// A session that a store knows is looked up there. c.mu is held.
func (c *hostedCopy) overNow(now time.Time) bool {
	return c.saved == savedNever && !c.busy() && since(now, c.used) >= c.rec.idle()
}

func (c *hostedCopy) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses--
	if c.uses == 0 && c.quiet != nil {
		close(c.quiet)
		c.quiet = nil
	}
}

// begin registers p before the SDK sees its request.
func (c *hostedCopy) begin(p *post) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.begun = c.used // when it entered
	c.posts = append(c.posts, p)
}

// answered says that ServeHTTP has returned for p. If handlers of p still run,
// their client has gone; on a copy that ends they are cancelled.
func (c *hostedCopy) answered(p *post) {
	c.mu.Lock()
	p.served = true
	c.forget(p)
	orphan := c.ending && p.running > 0
	c.mu.Unlock()
	if orphan {
		c.cancelPosts([]*post{p})
	}
}

// forget drops p if nothing more can come of it. c.mu is held.
func (c *hostedCopy) forget(p *post) {
	if !p.served || p.running > 0 || p.awaited {
		return
	}
	if i := slices.Index(c.posts, p); i >= 0 {
		last := len(c.posts) - 1
		c.posts[i], c.posts[last] = c.posts[last], nil
		c.posts = c.posts[:last]
	}
}

// handlerBegins is called by the middleware before each handler. It returns nil
// for a message whose client left before it was handled.
func (c *hostedCopy) handlerBegins(req mcp.Request) *post {
	extra := req.GetExtra()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		c.session, _ = req.GetSession().(*mcp.ServerSession)
		hostedSessions.store(c.session, c)
	}
	var p *post
	if extra != nil && extra.Header != nil {
		p = c.postOf(extra.Header)
	}
	if p != nil {
		p.running++
		p.awaited = false
	}
	if p == nil || !p.internal {
		c.running++
	}
	if p != nil && c.h.events != nil && extra.CloseSSEStream != nil {
		closeStream := extra.CloseSSEStream
		extra.CloseSSEStream = func(args mcp.CloseSSEStreamArgs) {
			c.mu.Lock()
			p.handedOver = true
			c.mu.Unlock()
			closeStream(args)
		}
	}
	return p
}

// unanswered reports whether a client still waits for an answer to p that cannot
// come any more.
func (c *hostedCopy) unanswered(p *post) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !p.handedOver
}

// postOf returns the post whose header a handler was shown. c.mu is held.
func (c *hostedCopy) postOf(h http.Header) *post {
	id := headerIdentity(h)
	for _, p := range c.posts {
		if headerIdentity(p.header) == id {
			return p
		}
	}
	return nil
}

func (c *hostedCopy) handlerEnds(p *post) {
	now := c.r.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == nil || !p.internal {
		c.running--
		c.used = now
	}
	if p != nil {
		p.running--
		c.forget(p)
	}
}

// busy reports whether something goes on that keeps the session alive by itself.
// c.mu is held.
func (c *hostedCopy) busy() bool {
	return c.uses > 0 || c.running > 0 || c.listening()
}
