package sessionshare

import (
	"context"
	"errors"
	"net/http"
	"time"
)

var errEventLarge = errors.New("sessionshare: event too large")

// A clientStream is one GET on a copy: a client's, or the library's own, which
// forwards to the replica that holds the client's (see forward.go).
type clientStream struct {
	c       *hostedCopy
	cancel  context.CancelFunc
	done    chan struct{} // closed when the GET has left the SDK
	own     bool          // the library's own
	ready   chan struct{} // of one of the library's own: closed when the SDK sends what it has to it
	ended   bool          // closeStream was called; c.mu
	dropped bool          // the library's own, ended for want of a client's; c.mu
	left    bool          // the client has gone: it is claimed no more; c.mu
	taken   bool          // ended because the client has a newer one on another replica; c.mu
	w       *streamWriter // of a client's
	nonce   string        // tells the client's streams apart
	inbox   chan string   // what other replicas have for it, see listen.go
	claimed time.Time     // when the store was last to be told that it is here; c.mu
	told    time.Time     // when the store last took that; zero: never; c.mu
}

// openStream makes s the newest stream for key: an earlier one for the same key is
// ended and waited for, so that a client which reconnects never sees the SDK's
// 409; but not for longer than ctx, which is that of s: the earlier one may hang in a
// write to a peer that is gone. It returns false if the copy is ending, or s is not
// wanted any more. The caller must call closeStream when the GET has left the SDK.
func (c *hostedCopy) openStream(ctx context.Context, key string, s *clientStream) bool {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return false
	}
	before := c.streams[key]
	if before != nil && s.own {
		c.mu.Unlock()
		return false
	}
	if c.streams == nil {
		c.streams = map[string]*clientStream{}
	}
	c.streams[key] = s
	if key == "" && !s.own {
		c.setHolder("")
	}
	if before != nil {
		before.end()
	}
	c.mu.Unlock()
	if !s.own && c.r.draining.Load() {
		s.cancel() // Drain may have come before s was to be seen
	}
	if before != nil {
		select {
		case <-before.done:
		case <-ctx.Done():
		}
	}
	return true
}

func (c *hostedCopy) closeStream(key string, s *clientStream) {
	now := c.r.now()
	s.cancel()
	c.mu.Lock()
	if c.streams[key] == s {
		delete(c.streams, key)
	}
	s.ended = true
	if !s.own {
		c.used = now
	}
	taken, holder := s.taken, ""
	if s.dropped || s.left {
		holder = c.holder() // the client has a stream again, elsewhere, since s was to end
	}
	c.mu.Unlock()
	close(s.done)
	if taken {
		c.lookSoon() // what this copy sends goes to where the client's stream is now
	}
	if holder != "" {
		c.follow(holder)
	}
}

// endStreams ends all streams of the copy.
func (c *hostedCopy) endStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.end()
	}
}

// drainStreams ends the client's streams: what calls here still say outside of
// themselves goes to where it opens them next.
func (c *hostedCopy) drainStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if !s.own {
			s.end()
		}
	}
}

// end ends the stream. A write to its peer that has been under way for a while is
// not waited for. c.mu is held.
func (s *clientStream) end() {
	s.cancel()
	if s.w == nil || s.ended {
		return
	}
	if began := s.w.writing.Load(); began != 0 && time.Since(time.Unix(0, began)) >= stuckWrite {
		_ = http.NewResponseController(s.w.ResponseWriter).SetWriteDeadline(time.Now())
	}
}

// stuckWrite is how long a write to a healthy peer may take.
const stuckWrite = time.Second

// listening reports whether a client has a stream open here. c.mu is held.
func (c *hostedCopy) listening() bool {
	for _, s := range c.streams {
		if !s.own {
			return true
		}
	}
	return false
}

// reachable reports whether what the copy sends outside a call gets anywhere.
func (c *hostedCopy) reachable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[""] != nil
}

// serveGET serves a GET on c. It returns false, with nothing written, if the
// copy's SDK session turned out to be gone.
func (h *handler) serveGET(c *hostedCopy, w http.ResponseWriter, req *http.Request) bool {
	given := req.Header.Get(headerLastEventID)
	if h.r.draining.Load() {
		emptyStream(w, given)
		return true
	}
	if said := h.verdict(req); said != nil {
		said.sendTo(w) // a request that is refused ends no other stream
		return true
	}
	ask := c.askedFor(given)
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	sw := &streamWriter{ResponseWriter: w, c: c, ask: ask, given: given, lost: cancel}
	s := &clientStream{c: c, cancel: cancel, done: make(chan struct{}), w: sw, nonce: newTag(8), inbox: make(chan string, inboxSize)}
	if ask.stream == "" {
		sw.merged = map[string]*merging{}
		sw.kick, sw.open = make(chan struct{}, 1), make(chan struct{})
		c.slowDown(ctx, sw)
	}
	if !c.openStream(ctx, ask.stream, s) {
		if !sw.began {
			return false
		}
		return true // the client comes again
	}
	defer c.closeStream(ask.stream, s)
	if ctx.Err() != nil {
		sw.start() // a newer GET came while we waited for an older one
		return true
	}
	req = req.Clone(ctx)
	req.Header.Del(headerLastEventID)
	if ask.event != "" {
		req.Header.Set(headerLastEventID, ask.event)
	}
	if ask.stream == "" {
		defer s.tendFrom(ctx)()
	} else {
		c.takeUp(ctx, ask.stream)
	}
	c.sdk.ServeHTTP(sw, req)
	return sw.finish(func() *recorded { return h.verdict(req) })
}
