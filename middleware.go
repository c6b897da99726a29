package sessionshare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// idArmory hands the SDK the session ID that a copy is to have. The SDK calls a
// handler's getServer and then, on the same goroutine and before it reads the
// body, ServerOptions.GetSessionID, which does not say for whom. So getServer
// arms the ID under a lock that all creations share, and GetSessionID takes it
// and unlocks. The lock is held for microseconds.
type idArmory struct {
	fresh func() string // makes an ID when none is armed

	mu    sync.Mutex // held while armed is not nil
	armed atomic.Pointer[string]
}

// An arming is one creation's turn.
type arming struct {
	armory *idArmory
	id     string
	done   bool
}

// arm puts the ID up to be taken, once.
func (a *arming) arm() {
	if a.done {
		return
	}
	a.done = true
	a.armory.mu.Lock()
	a.armory.armed.Store(&a.id)
}

// disarm takes the ID down if nobody took it, and reports whether it was taken.
func (a *arming) disarm() (taken bool) {
	if a.armory.armed.CompareAndSwap(&a.id, nil) {
		a.armory.mu.Unlock()
		return false
	}
	return a.done
}

// take is GetSessionID: the armed ID, or a fresh one for a session that is none
// of this library's making.
func (y *idArmory) take() string {
	if p := y.armed.Swap(nil); p != nil {
		y.mu.Unlock()
		return *p
	}
	return y.fresh()
}

// watched holds the servers that have the middleware: a static server is
// returned by the factory many times, and has it once.
var watched struct {
	mu      sync.Mutex
	servers map[weak.Pointer[mcp.Server]]struct{}
}

// watch installs the middleware on server, once.
func watch(server *mcp.Server) {
	watched.mu.Lock()
	defer watched.mu.Unlock()
	key := weak.Make(server)
	if _, ok := watched.servers[key]; ok {
		return
	}
	if watched.servers == nil {
		watched.servers = map[weak.Pointer[mcp.Server]]struct{}{}
	}
	watched.servers[key] = struct{}{}
	runtime.AddCleanup(server, func(key weak.Pointer[mcp.Server]) {
		watched.mu.Lock()
		defer watched.mu.Unlock()
		delete(watched.servers, key)
	}, key)
	server.AddReceivingMiddleware(receiving)
	server.AddSendingMiddleware(sending)
}

func copyFrom(ctx context.Context) *hostedCopy {
	c, _ := ctx.Value(sessionKey{}).(*hostedCopy)
	return c
}

// receiving sees every message that a copy's SDK session handles.
func receiving(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		c := copyFrom(ctx)
		if c == nil {
			return next(ctx, method, req)
		}
		p := c.handlerBegins(req)
		defer c.handlerEnds(p)
		client := p == nil || !p.internal
		switch {
		case client && stateMethod(method):
			return c.setting(ctx, method, req, next)
		case stateMethod(method):
			ctx = context.WithValue(ctx, replayedKey{}, true)
		case client && method == "notifications/roots/list_changed":
			defer c.rootsChanged()
		case method == "initialize":
			res, err := next(ctx, method, req)
			c.initialized(res)
			return res, err
		case method == "notifications/initialized":
			if c.greetedBefore() {
				return nil, nil // replayed already; the SDK would log an error
			}
		}
		return next(ctx, method, req)
	}
}

// replayedKey marks the context of a handler that is called by a replay: whom it
// asks, nobody listens to.
type replayedKey struct{}

var errReplayed = errors.New("sessionshare: what is set on a session is set on every copy of it, and only the first one can ask the client")

// initialized notes what the copy's SDK session negotiated.
func (c *hostedCopy) initialized(res mcp.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if res, ok := res.(*mcp.InitializeResult); ok && res != nil && c.protocol == "" {
		c.protocol = res.ProtocolVersion
	}
}

// greetedBefore notes that notifications/initialized comes, and reports whether
// it has come before.
func (c *hostedCopy) greetedBefore() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.greeted
	c.greeted = true
	return before
}

// hostedSessions finds the copy of an SDK session, where the context does not know
// it.
var hostedSessions table[*mcp.ServerSession]

// A table finds copies. It is not on the way of a request.
type table[K comparable] struct {
	mu sync.RWMutex
	m  map[K]*hostedCopy // guarded by mu
}

func (t *table[K]) load(k K) (*hostedCopy, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c, ok := t.m[k]
	return c, ok
}

func (t *table[K]) store(k K, c *hostedCopy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[K]*hostedCopy{}
	}
	t.m[k] = c
}

// delete removes k if it still stands for c.
func (t *table[K]) delete(k K, c *hostedCopy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[k] == c {
		delete(t.m, k)
	}
}

// sending sees what a copy sends to its client.
func sending(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "notifications/") {
			return next(ctx, method, req)
		}
		session, _ := req.GetSession().(*mcp.ServerSession)
		c, ok := hostedSessions.load(session)
		if !ok {
			return next(ctx, method, req)
		}
		if method == "ping" && copyFrom(ctx) == nil && !c.reachable() {
			// The SDK's keep-alive; a tool's ping has the tool's context. Without a
			// stream it cannot reach the client, which may well be alive and talk to
			// another replica: failing would make the SDK close the copy under its
			// running calls.
			if pong := emptyResult(); pong != nil {
				return pong, nil
			}
		}
		if ctx.Value(replayedKey{}) != nil {
			return nil, errReplayed
		}
		c.seekStream(ctx)
		c.asks(1)
		defer c.asks(-1)
		return next(ctx, method, req)
	}
}

// emptyResult is what the SDK answers a ping with, a type that it does not
// export; nil if that cannot be had.
var emptyResult = sync.OnceValue(func() (pong mcp.Result) {
	defer func() {
		if recover() != nil {
			pong = nil
		}
	}()
	var handle mcp.MethodHandler
	server := mcp.NewServer(&mcp.Implementation{Name: "ping"}, nil)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		handle = next
		return next
	})
	transport, _ := mcp.NewInMemoryTransports()
	session, err := server.Connect(context.Background(), transport, nil)
	if err != nil {
		return nil
	}
	defer session.Close()
	pong, err = handle(context.Background(), "ping", &mcp.ServerRequest[*mcp.PingParams]{Session: session, Params: &mcp.PingParams{}})
	if err != nil {
		return nil
	}
	return pong
})

// callFactory runs the host's factory; a panic is an error.
func callFactory(f func() *mcp.Server) (server *mcp.Server, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sessionshare: the server factory panicked: %v", p)
		}
	}()
	return f(), nil
}
