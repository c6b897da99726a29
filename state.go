package sessionshare

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// State is what a client has set on its session: the log level, subscriptions,
// and that its roots have changed. It is a set of elements, each with a version;
// the highest version wins, so that replicas which write at once lose nothing, and
// an unsubscribe stays undone.
type sessionState map[string]element

// An element is one fact. A fact that is off stays, or a slower replica would
// bring it back.
type element struct {
	Version int    `json:"n"`
	Writer  string `json:"w"` // tag of the copy; decides between equal versions
	Off     bool   `json:"off,omitempty"`
	Value   string `json:"v,omitempty"` // the level
}

// Names of elements. A URI follows its prefix.
const (
	elementLevel = "level"
	elementRoots = "roots"
	elementData  = "data" // the host has stored data of its own, see data.go
	elementURI   = "uri "
)

// Bounds on the state of one session.
const (
	maxElements  = 1000
	maxURI       = 2 << 10
	maxStateSize = 192 << 10
)

// newer reports whether e wins over other.
func (e element) newer(other element) bool {
	return cmp.Or(cmp.Compare(e.Version, other.Version), cmp.Compare(e.Writer, other.Writer)) > 0
}

// merge takes from other what is newer there, and reports whether s has anything
// that other lacks.
func (s sessionState) merge(other sessionState) (ahead bool) {
	for name, e := range other {
		if e.newer(s[name]) {
			s[name] = e
		}
	}
	for name, e := range s {
		ahead = ahead || e.newer(other[name])
	}
	return ahead
}

func (s sessionState) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil || len(b) > maxStateSize {
		return nil
	}
	return b
}

func decodeState(b []byte) sessionState {
	var s sessionState
	if len(b) > MaxValueBytes || json.Unmarshal(b, &s) != nil || len(s) > 2*maxElements {
		return nil
	}
	return s
}

// room makes room for one more element: what is off goes first, the oldest of it.
// It reports false if there is none.
func (s sessionState) room() bool {
	if len(s) < maxElements {
		return true
	}
	var oldest string
	for name, e := range s {
		if e.Off && (oldest == "" || e.Version < s[oldest].Version) {
			oldest = name
		}
	}
	delete(s, oldest)
	return oldest != ""
}

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
	c.stateMu.Lock()
	defer func() {
		c.stateMu.Unlock()
		if c.stateLate.Swap(false) {
			c.lookSoon()
		}
	}()
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

// rootsChanged notes that the client's roots have changed. The SDK handles
// notifications one by one: nothing may wait here, least of all for a replay.
func (c *hostedCopy) rootsChanged() {
	c.r.owned.run(func() {
		c.stateMu.Lock()
		defer c.stateMu.Unlock()
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
	if _, known := c.state[name]; !known && !c.state.room() {
		c.r.log.Warn("sessionshare: state is not shared, there is too much of it", "session", c.Digest())
		return
	}
	e.Version, e.Writer = c.state[name].Version+1, c.tag
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

// syncState merges what a recheck read, writes if this copy knows more, and
// replays what is new, through the SDK's handler, so that the server's own
// handlers run.
func (c *hostedCopy) syncState(ctx context.Context, value []byte) {
	if !c.stateMu.TryLock() {
		// A client's request sets state now, which may take its handler long. It
		// makes us look again.
		c.stateLate.Store(true)
		return
	}
	defer c.stateMu.Unlock()
	if ahead := c.learn(value); ahead {
		c.stateOwed.Store(true)
		c.writeState(ctx, value)
	} else {
		c.stateOwed.Store(false)
	}
	c.replayState()
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
		if body := replayBody(name, e, had); body != nil {
			handled := name == elementRoots
			if w := c.deliver(body, handled); w.status >= 300 || isErrorAnswer(w.body.Bytes()) {
				c.r.log.Warn("sessionshare: replaying state failed", "session", c.Digest(), "status", w.status)
			}
		}
	}
}

// replayBody is the message that takes the SDK from had to e; nil if there is
// nothing to do.
func replayBody(name string, e, had element) []byte {
	call := func(method, param, value string) []byte {
		p, _ := json.Marshal(map[string]string{param: value})
		return []byte(`{"jsonrpc":"2.0","id":"` + newTag(16) + `","method":"` + method + `","params":` + string(p) + `}`)
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
