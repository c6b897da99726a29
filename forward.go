package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// What a copy sends outside a call goes to the session's stream, which may be on
// another replica. Where hints are up, the library then holds the SDK's one GET of
// the copy and forwards what appears on it to the holder: a notification that says
// no more than "look again" in a hint, anything else through the store, named by
// a hint. Without hints nothing holds that GET, and sending fails as it does in
// the SDK without a stream: at once, and visibly.

const outTTL = time.Minute

// follow makes the copy forward to the replica holder; "" to nobody.
func (c *hostedCopy) follow(holder string) {
	if holder == c.r.hints.self || !c.r.hints.up.Load() {
		holder = ""
	}
	c.mu.Lock()
	c.setHolder(holder)
	own := c.streams[""]
	if own != nil && !own.own {
		own = nil
	}
	start := holder != "" && c.streams[""] == nil && !c.ending && c.session != nil
	if own != nil && holder == "" {
		own.dropped = true
	}
	c.mu.Unlock()
	switch {
	case start:
		ctx, cancel := context.WithCancel(context.Background())
		s := &clientStream{c: c, cancel: cancel, done: make(chan struct{}), own: true, ready: make(chan struct{})}
		if !c.openStream(ctx, "", s) {
			cancel()
			return
		}
		c.r.owned.run(func() {
			defer c.closeStream("", s)
			req := c.internalRequest(nil)
			req.Method, req.Body = http.MethodGet, http.NoBody
			if last := c.lastSeen(); c.h.events != nil && last != "" {
				req.Header.Set(headerLastEventID, last) // what has left is not replayed
			}
			ready := sync.OnceFunc(func() { close(s.ready) })
			c.sdk.ServeHTTP(&forwarder{c: c, header: http.Header{}, ready: ready, lost: cancel}, withCancel(req, ctx))
		})
	case holder == "" && own != nil:
		own.cancel()
	}
}

// withCancel returns req with its context's values, ending with ctx.
func withCancel(req *http.Request, ctx context.Context) *http.Request {
	return req.WithContext(valuesOf{ctx, req.Context()})
}

type valuesOf struct {
	context.Context
	values context.Context
}

func (v valuesOf) Value(key any) any { return v.values.Value(key) }

// A forwarder is the ResponseWriter of the library's own GET on a copy.
type forwarder struct {
	c      *hostedCopy
	header http.Header
	ready  func() // called when the SDK answers the GET
	lost   func() // ends the GET
	split  sseSplitter
}

func (f *forwarder) Header() http.Header { return f.header }
func (f *forwarder) WriteHeader(int)     { f.ready() }
func (f *forwarder) Flush()              {}

// Write is called by the SDK for one event at a time, in order. It fails if the
// message was not handed on, so that who sent it knows.
func (f *forwarder) Write(b []byte) (int, error) {
	if err := f.split.split(b, f.event); err != nil {
		return 0, err
	}
	return len(b), nil
}

var errNoHolder = errors.New("sessionshare: the session has no stream")

func (f *forwarder) event(text []byte) error {
	e := parseEvent(text)
	if len(e.data) > 0 {
		switch err := f.forward(f.c.outgoing(e.data)); {
		case err == nil:
		case errors.Is(err, errEventLarge):
			f.c.sawEvent(e.id) // it will be as large the next time
			return err
		default:
			if f.c.h.events != nil {
				f.lost() // the next GET goes on with this one
			}
			return err
		}
	}
	f.c.sawEvent(e.id)
	return nil
}

// forward sends a message to the replica that holds the client's stream.
func (f *forwarder) forward(data []byte) error {
	c := f.c
	c.mu.Lock()
	holder := c.holder()
	c.mu.Unlock()
	switch {
	case holder == "":
		return errNoHolder
	case mergeable(data):
		c.r.notes.add(holder, string(data), c.digest)
		return nil
	case len(data) > maxRelayed:
		c.r.log.Warn("sessionshare: a message for the client's stream on another replica is too large", "session", c.Digest(), "bytes", len(data))
		return errEventLarge
	}
	c.r.notes.flush() // what was sent before comes before
	c.mu.Lock()
	rare := c.rarely()
	rare.forwarded++
	n := rare.forwarded
	c.mu.Unlock()
	ctx, key := context.Background(), c.r.keys.out(c.digest, c.tag, n)
	if err := c.r.store.put(ctx, key, bytes.Clone(data), outTTL); err != nil {
		return err
	}
	base := key[len(c.r.keys.prefix) : strings.LastIndexByte(key, '.')+1]
	if err := c.r.hints.publish(ctx, holder, hintOut, c.r.outbox.hint(c.digest, base, n)); err != nil {
		_ = c.r.store.delete(ctx, key) // who said it is told that it was in vain
		return err
	}
	c.r.outbox.add(c.digest, base, n, len(data))
	return nil
}

// receiveOut is called for a hint that messages for the client's stream are in the
// store.
func (c *hostedCopy) receiveOut(item string) {
	key, _, _ := strings.Cut(item, " ")
	if !strings.HasPrefix(key, keyOut+string(c.digest)+".") || len(key) > MaxKeyBytes {
		return
	}
	if !c.toStream(item) { // it has gone elsewhere
		c.r.owned.run(func() { _ = c.r.nameAgain(context.Background(), c.digest, string(c.digest)+" "+item) })
	}
}

// toStream hands item to the client's stream here, and reports false if there is
// none.
func (c *hostedCopy) toStream(item string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[""]
	if s == nil || s.own {
		return false
	}
	select {
	case s.inbox <- item:
	default:
		// A notification is lost; a message is named again by who sent it.
		c.r.log.Warn("sessionshare: a client's stream does not keep up", "session", c.Digest())
	}
	return true
}

// receive sends what is in the inbox: messages, which are named there, and
// notifications. It returns false if the client is not reached. What cannot be read
// is named again by who sent it.
func (s *clientStream) receive(ctx context.Context, first string) (reached bool) {
	r := s.c.r
	items := []string{first}
	for more := true; more && len(items) < maxBatch; {
		select {
		case item := <-s.inbox:
			items = append(items, item)
		default:
			more = false
		}
	}
	out, keys, done := s.c.unsent(items)
	values, err := r.fetch(ctx, keys)
	if err != nil {
		r.log.Warn("sessionshare: messages from another replica cannot be read yet", "session", s.c.Digest(), "error", err)
	}
	var sent []string
	reached = true
	for _, item := range out {
		note := item[0] == '{'
		data := values[item]
		if note {
			data = []byte(item)
		}
		if len(data) == 0 {
			continue
		}
		if reached = s.w.forwarded(data) == nil; !reached {
			break
		}
		if !note {
			sent = append(sent, item)
		}
	}
	if done = append(done, sent...); len(done) > 0 {
		s.c.mu.Lock()
		rare := s.c.rarely()
		rare.sent = rare.sent.add(sent)
		s.c.mu.Unlock()
		r.owned.run(func() {
			for _, key := range done {
				if r.store.delete(context.Background(), r.keys.prefix+key) != nil {
					return // they are named again
				}
			}
		})
	}
	return reached
}

// unsent returns what of items is to be sent, notifications and the keys of
// messages, the latter once more for themselves, and the keys of messages that were
// sent before.
func (c *hostedCopy) unsent(items []string) (out, keys, sent []string) {
	c.mu.Lock()
	before := c.rarely().sent
	c.mu.Unlock()
	seen := map[string]bool{}
	for _, item := range items {
		if item[0] == '{' {
			out = append(out, item)
			continue
		}
		named := namedKeys(item)
		again := slices.Contains(before, named[len(named)-1])
		for _, key := range named {
			switch {
			case seen[key]:
			case !slices.Contains(before, key):
				out, keys = append(out, key), append(keys, key)
			case again: // named once more: deleting it has failed
				sent = append(sent, key)
			}
			seen[key] = true
		}
	}
	return out, keys, sent
}

// notes gathers notifications that travel in hints: what one change has made many
// sessions say goes out as few hints.
type notes struct {
	r *Replica

	mu      sync.Mutex // guards all below
	pending map[noteKey][]sessionDigest
}

type noteKey struct{ holder, data string }

const (
	// noteDelay is how long notifications gather.
	noteDelay = 2 * time.Millisecond

	digestLen = 64
)

func (k *notes) add(holder, data string, d sessionDigest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == nil {
		k.pending = map[noteKey][]sessionDigest{}
		k.r.owned.run(func() {
			time.Sleep(noteDelay)
			k.flush()
		})
	}
	key := noteKey{holder, data}
	k.pending[key] = append(k.pending[key], d)
}

func (k *notes) flush() {
	k.mu.Lock()
	pending := k.pending
	k.pending = nil
	k.mu.Unlock()
	for key, digests := range pending {
		seen := map[sessionDigest]bool{}
		about := []byte(key.data + "\n")
		for _, d := range digests {
			if seen[d] {
				continue
			}
			seen[d] = true
			if 1+len(about)+digestLen > maxHint {
				_ = k.r.hints.publish(context.Background(), key.holder, hintNotes, string(about))
				about = []byte(key.data + "\n")
			}
			about = append(about, d...)
		}
		_ = k.r.hints.publish(context.Background(), key.holder, hintNotes, string(about))
	}
}

// receiveNotes takes notifications out of a hint.
func (r *Replica) receiveNotes(about string) {
	data, digests, ok := strings.Cut(about, "\n")
	if !ok || !mergeable([]byte(data)) {
		return
	}
	for ; len(digests) >= digestLen; digests = digests[digestLen:] {
		if c, ok := r.byDigest(sessionDigest(digests[:digestLen])); ok {
			c.toStream(data)
		}
	}
}
