package sessionshare

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// finish ends the answer. It returns false if the SDK session is gone and nothing
// was written. verdict asks what the SDK thinks of the request on whatever session.
func (w *streamWriter) finish(verdict func() *recorded) (served bool) {
	w.mu.Lock()
	refused, began := w.refused, w.began
	w.mu.Unlock()
	switch {
	case began:
	case refused == 0:
		// The SDK has nothing of this call in its EventStore, or nothing yet, for the
		// call runs elsewhere. Without an event ID the client would not come again.
		emptyStream(w.ResponseWriter, w.given)
	case refused == http.StatusNotFound:
		forgetError(w.Header())
		return false
	default:
		forgetError(w.Header())
		if said := verdict(); said != nil {
			said.sendTo(w.ResponseWriter)
			break
		}
		// What cannot be replayed here is no reason to end the session. Another
		// replica may be able to.
		emptyStream(w.ResponseWriter, w.given)
	}
	return true
}

// A streamWriter is the ResponseWriter of a client's GET. It puts the block before
// everything else, catches errors that clients do not survive, and lets others
// write between the SDK's events.
type streamWriter struct {
	http.ResponseWriter
	c     *hostedCopy
	ask   streamAsk
	given string        // Last-Event-ID as it came
	lost  func()        // ends the stream: nothing gets through to the client
	kick  chan struct{} // wakes tend; nil for the stream of a call
	open  chan struct{} // closed when the stream has begun; nil likewise

	writing atomic.Int64 // since when a write is under way, in ns of Unix time; 0: none

	mu      sync.Mutex // guards all below, and writing
	began   bool
	refused int // a status that was caught
	split   sseSplitter
	merged  map[string]*merging
	wrote   time.Time
}

func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *streamWriter) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

// writeHeader is WriteHeader. w.mu is held.
func (w *streamWriter) writeHeader(status int) {
	switch {
	case w.refused != 0:
	case status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusBadRequest:
		w.refused = status
	case w.began:
	case status == http.StatusOK:
		w.begin()
	default:
		w.began = true
		w.ResponseWriter.WriteHeader(status)
	}
}

// begin sends the header and the block. w.mu is held.
func (w *streamWriter) begin() {
	w.began, w.wrote = true, w.c.r.now()
	w.ResponseWriter.WriteHeader(http.StatusOK)
	writeBlock(w.ResponseWriter, w.ask.again())
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	if w.open != nil {
		close(w.open)
	}
}

// start begins the answer before the SDK does.
func (w *streamWriter) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began && w.refused == 0 {
		streamHeader(w.Header())
		w.begin()
	}
}

func (w *streamWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused != 0 {
		return len(b), nil
	}
	if !w.began {
		w.writeHeader(http.StatusOK)
	}
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		return w.ResponseWriter.Write(b)
	}
	if err := w.split.split(b, w.event); err != nil {
		w.lost()
		return 0, err
	}
	return len(b), nil
}

// event sends one event of the SDK's. w.mu is held.
func (w *streamWriter) event(text []byte) error {
	out, e := w.c.clientEvent(text)
	if !w.merge(e.data) {
		if err := w.send(out); err != nil {
			return err
		}
	}
	if w.ask.stream == "" {
		w.c.sawEvent(e.id)
	}
	return nil
}

// send writes text. w.mu is held.
func (w *streamWriter) send(text []byte) error {
	w.wrote = w.c.r.now()
	return w.bounded(func(*http.ResponseController) error {
		_, err := w.ResponseWriter.Write(text)
		return err
	})
}

// flush sends what was written. w.mu is held.
func (w *streamWriter) flush() error {
	return w.bounded((*http.ResponseController).Flush)
}

// bounded gives f, which writes, as long as a heartbeat: a connection that takes
// nothing for so long has lost its peer. w.mu is held.
func (w *streamWriter) bounded(f func(*http.ResponseController) error) error {
	patience := w.c.r.opts.StreamHeartbeat
	if patience < 0 {
		patience = DefaultStreamHeartbeat
	}
	rc, now := http.NewResponseController(w.ResponseWriter), time.Now()
	_ = rc.SetWriteDeadline(now.Add(patience))
	w.writing.Store(now.UnixNano())
	err := f(rc)
	w.writing.Store(0)
	_ = rc.SetWriteDeadline(time.Time{})
	return err
}

// FlushError serves http.ResponseController.
func (w *streamWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused != 0 {
		return nil
	}
	if !w.began {
		w.writeHeader(http.StatusOK)
	}
	err := w.flush()
	if err != nil && !isUnsupported(err) && w.lost != nil {
		w.lost() // the SDK does not look at it
	}
	return err
}

// forgetError removes what http.Error has left in the header of an answer that
// was caught.
func forgetError(h http.Header) {
	h.Del("Content-Type")
	h.Del("X-Content-Type-Options")
}
