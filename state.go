package sessionshare

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stateMethod reports whether a request with this method sets state.
func stateMethod(method string) bool {
	switch method {
	case "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return true
	}
	return false
}

// setting lets the SDK handle a client's request that sets state, and notes it in
// the store before the client gets its answer. stateMu keeps it apart from
// replays, so that what the SDK has and what is noted agree.
func (c *hostedCopy) setting(ctx context.Context, method string, req mcp.Request, next mcp.MethodHandler) (mcp.Result, error) {
	if err := c.stateMu.LockContext(ctx); err != nil {
		return nil, err
	}
	defer c.unlockState()
	res, err := next(ctx, method, req)
	if err != nil {
		return res, err
	}
	switch p := req.GetParams().(type) {
	case *mcp.SetLoggingLevelParams:
		c.note(ctx, elementLevel, element{Value: string(p.Level)})
	case *mcp.SubscribeParams:
		c.noteURI(ctx, p.URI, false)
	case *mcp.UnsubscribeParams:
		c.noteURI(ctx, p.URI, true)
	}
	return res, nil
}

// A waitLock is a mutex that may be held for long, over calls of the store and of
// the host's handlers: who waits for it can give up. The zero value is ready, and
// small until it is used.
type waitLock struct{ ch atomic.Pointer[chan struct{}] }

func (l *waitLock) chan1() chan struct{} {
	if p := l.ch.Load(); p != nil {
		return *p
	}
	ch := make(chan struct{}, 1)
	l.ch.CompareAndSwap(nil, &ch)
	return *l.ch.Load()
}

func (l *waitLock) Lock() { l.chan1() <- struct{}{} }

func (l *waitLock) Unlock() { <-l.chan1() }

func (l *waitLock) LockContext(ctx context.Context) error {
	select {
	case l.chan1() <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *waitLock) TryLock() bool {
	select {
	case l.chan1() <- struct{}{}:
		return true
	default:
		return false
	}
}

// unlockState releases stateMu, and looks again for who found it locked.
func (c *hostedCopy) unlockState() {
	c.stateMu.Unlock()
	if c.stateLate.Swap(false) {
		c.lookSoon()
	}
}

// rootsChanged notes that the client's roots have changed. The SDK handles
// notifications one by one: nothing may wait here, least of all for a replay.
func (c *hostedCopy) rootsChanged() {
	c.r.owned.run(func() {
		c.stateMu.Lock()
		defer c.unlockState()
		c.note(context.Background(), elementRoots, element{})
	})
}

func (c *hostedCopy) noteURI(ctx context.Context, uri string, off bool) {
	if len(uri) > maxURI {
		c.r.log.Warn("sessionshare: a subscription is not shared, its URI is too long", "session", c.Digest())
		return
	}
	c.note(ctx, elementURI+uri, element{Off: off})
}

// note makes e the newest version of an element. What others have written is read
// first, so that it is newer than that. c.stateMu is held.
func (c *hostedCopy) note(ctx context.Context, name string, e element) {
	if c.r.store == nil {
		return
	}
	key := c.r.keys.state(c.digest)
	values, err := c.r.store.get(ctx, key)
	if err == nil {
		c.learn(values[0])
	}
	if c.state == nil {
		c.state = sessionState{}
	}
	c.stateKnown.Store(true)
	if _, known := c.state[name]; !known && !c.state.room(name) {
		c.r.log.Warn("sessionshare: state is not shared, there is too much of it", "session", c.Digest())
		return
	}
	e.Version, e.Writer = max(c.state[name].Version+1, c.r.now().UnixMilli()), c.tag
	c.state[name] = e
	if c.applied == nil {
		c.applied = sessionState{}
	}
	c.applied[name] = e
	c.stateOwed.Store(true)
	if err == nil {
		c.writeState(ctx, values[0])
	}
	c.r.hints.publishSoon("", hintLook, string(c.digest))
}

// learn merges what was read. c.stateMu is held. A missing or unreadable value is
// lost, not empty.
func (c *hostedCopy) learn(value []byte) (ahead bool) {
	other := decodeState(value)
	if c.state == nil && len(other) > 0 {
		c.state = sessionState{}
		c.stateKnown.Store(true)
	}
	return c.state.merge(other)
}

// casTries is how often a swap is tried that others keep winning.
const casTries = 8

// writeState stores what this copy knows, merged with what is there: in one step
// where the store can, else it reads again at the next recheck, and writes again
// if somebody overwrote it. c.stateMu is held. read is what was just read.
func (c *hostedCopy) writeState(ctx context.Context, read []byte) {
	key, idle := c.r.keys.state(c.digest), c.rec.idle()
	for range casTries {
		value := c.state.encode()
		if value == nil {
			c.r.log.Warn("sessionshare: state is not shared, it is too large", "session", c.Digest())
			c.stateOwed.Store(false)
			return
		}
		if c.r.store.swapper == nil {
			_ = c.r.store.put(ctx, key, value, idle)
			c.stateWrote = c.r.now()
			return // still owed, until a read has shown that it is there
		}
		swapped, err := c.r.store.swap(ctx, key, read, value, idle)
		if err != nil {
			return
		}
		if swapped {
			c.stateOwed.Store(false)
			return
		}
		values, err := c.r.store.get(ctx, key)
		if err != nil {
			return
		}
		read = values[0]
		if !c.learn(read) {
			c.stateOwed.Store(false)
			return
		}
	}
}

// syncState merges what a recheck read that began at began, writes if this copy
// knows more, and replays what is new, through the SDK's handler, so that the
// server's own handlers run. A request waits for them, but not for slow ones.
func (c *hostedCopy) syncState(ctx context.Context, began time.Time, value []byte) {
	if value == nil && !c.stateKnown.Load() {
		return // as with most sessions, nobody has ever set anything
	}
	// A client's request sets state now, or something is replayed, which may take
	// a handler long. Who has the lock then looks again.
	c.stateLate.Store(true)
	if !c.stateMu.TryLock() {
		return
	}
	c.stateLate.Store(false)
	switch {
	case c.learn(value):
		c.stateOwed.Store(true)
		c.writeState(ctx, value)
	case c.r.store.swapper != nil, since(began, c.stateWrote) >= 2*c.r.opts.StoreTimeout:
		c.stateOwed.Store(false) // nobody who read before we wrote still writes
	}
	if !c.behind() {
		c.unlockState()
		return
	}
	_, _ = within(ctx, c.r.opts.StoreTimeout, c.r.owned.run, func(context.Context) (struct{}, error) {
		defer c.unlockState()
		c.replayState()
		return struct{}{}, nil
	})
}

// behind reports whether the SDK session lacks something. c.stateMu is held.
func (c *hostedCopy) behind() bool {
	for name, e := range c.state {
		if e.newer(c.applied[name]) {
			return true
		}
	}
	return false
}

// replayState applies to the SDK session what it does not have. c.stateMu is
// held.
func (c *hostedCopy) replayState() {
	if len(c.state) == 0 {
		return
	}
	if c.applied == nil {
		c.applied = sessionState{}
	}
	for _, name := range slices.Sorted(maps.Keys(c.state)) {
		e, had := c.state[name], c.applied[name]
		if !e.newer(had) {
			continue
		}
		c.applied[name] = e
		id := `"` + newTag(16) + `"`
		if body := replayBody(id, name, e, had); body != nil {
			handled := name == elementRoots
			bound := time.AfterFunc(factoryTime, func() { c.cancelIDs(rawID(id)) })
			w := c.deliver(body, handled)
			bound.Stop()
			if w.status >= 300 || isErrorAnswer(w.body.Bytes()) {
				c.r.log.Warn("sessionshare: replaying state failed", "session", c.Digest(), "status", w.status)
			}
		}
	}
}

// replayBody is the message that takes the SDK from had to e; nil if there is
// nothing to do.
func replayBody(id, name string, e, had element) []byte {
	call := func(method, param, value string) []byte {
		p, _ := json.Marshal(map[string]string{param: value})
		return []byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + string(p) + `}`)
	}
	uri, isURI := bytes.CutPrefix([]byte(name), []byte(elementURI))
	switch {
	case name == elementLevel && e.Value != had.Value:
		return call("logging/setLevel", "level", e.Value)
	case name == elementRoots:
		return []byte(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	case isURI && !e.Off && (had.Version == 0 || had.Off):
		return call("resources/subscribe", "uri", string(uri))
	case isURI && e.Off && had.Version != 0 && !had.Off:
		return call("resources/unsubscribe", "uri", string(uri))
	}
	return nil
}

// isErrorAnswer reports whether a recorded answer is a JSON-RPC error.
func isErrorAnswer(b []byte) bool {
	return bytes.Contains(b, []byte(`"error":{`)) && !bytes.Contains(b, []byte(`"result":`))
}
