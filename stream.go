package sessionshare

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
)

// A clientStream is one GET that is served on a copy.
type clientStream struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the GET has left the SDK
}

// openStream makes ctx, the context of a GET, the newest one for key: an earlier
// GET for the same stream is ended and waited for, so that a client which
// reconnects never sees the SDK's 409. It returns ok false if the copy is ending.
// The caller must call done when the GET has left the SDK.
func (c *hostedCopy) openStream(ctx context.Context, key string) (_ context.Context, done func(), ok bool) {
	ctx, cancel := context.WithCancel(ctx)
	s := &clientStream{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		cancel()
		return nil, nil, false
	}
	if c.streams == nil {
		c.streams = map[string]*clientStream{}
	}
	before := c.streams[key]
	c.streams[key] = s
	c.mu.Unlock()
	if c.r.draining.Load() {
		cancel() // Drain may have come before this stream was to be seen
	}
	if before != nil {
		before.cancel()
		<-before.done
	}
	return ctx, func() {
		now := c.r.now()
		cancel()
		c.mu.Lock()
		if c.streams[key] == s {
			delete(c.streams, key)
		}
		c.used = now
		c.mu.Unlock()
		close(s.done)
	}, true
}

// endStreams ends all streams of the copy.
func (c *hostedCopy) endStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.cancel()
	}
}

func (c *hostedCopy) hasStream() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) > 0
}

// Every stream begins with a block that has an id and no data. Without it the
// SDK's Go client gives a session up at the sixth end of its stream; with it, the
// stream has made progress. The id is new each time, for the same reason. It
// carries the Last-Event-ID that the client asked for, so that a stream which
// could not be served now is asked for again.
const blockMark = "~"

func blockID(lastEventID string) string {
	id := blockMark + rand.Text()[:10]
	if lastEventID != "" && len(lastEventID) <= maxLastEventID {
		id += blockMark + lastEventID
	}
	return id
}

// maxLastEventID bounds what is carried along.
const maxLastEventID = 512

// eventAsked returns the event ID that a client means by its Last-Event-ID, ""
// for a fresh stream.
func eventAsked(lastEventID string) string {
	if !strings.HasPrefix(lastEventID, blockMark) {
		return lastEventID
	}
	_, carried, _ := strings.Cut(lastEventID[1:], blockMark)
	return carried
}

func writeBlock(w http.ResponseWriter, lastEventID string) {
	_, _ = w.Write([]byte("id: " + blockID(lastEventID) + "\n\n"))
}

// emptyStream answers a GET that cannot be served: all clients reopen a stream
// that has ended, and none survives an error.
func emptyStream(w http.ResponseWriter, lastEventID string) {
	streamHeader(w.Header())
	w.WriteHeader(http.StatusOK)
	writeBlock(w, eventAsked(lastEventID))
	_ = http.NewResponseController(w).Flush()
}

func streamHeader(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Connection", "keep-alive")
}

// A streamWriter is the ResponseWriter of a GET. It puts the block before
// everything else and catches errors that clients do not survive.
type streamWriter struct {
	http.ResponseWriter
	lastEventID string // as asked for
	began       bool
	refused     int // a status that was caught
}

func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *streamWriter) WriteHeader(status int) {
	switch {
	case w.began || w.refused != 0:
		return
	case status == http.StatusOK:
		w.began = true
		w.ResponseWriter.WriteHeader(status)
		writeBlock(w.ResponseWriter, w.lastEventID)
	case status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusBadRequest && w.lastEventID != "":
		w.refused = status
	default:
		w.began = true
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *streamWriter) Write(b []byte) (int, error) {
	if w.refused != 0 {
		return len(b), nil
	}
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// FlushError serves http.ResponseController.
func (w *streamWriter) FlushError() error {
	if w.refused != 0 {
		return nil
	}
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// forgetError removes what http.Error has left in the header of an answer that
// was caught.
func forgetError(h http.Header) {
	h.Del("Content-Type")
	h.Del("X-Content-Type-Options")
}

// serveGET serves a GET on c. It returns false, with nothing written, if the
// copy's SDK session turned out to be gone.
func (h *handler) serveGET(c *hostedCopy, w http.ResponseWriter, req *http.Request) bool {
	given := req.Header.Get(headerLastEventID)
	asked := eventAsked(given)
	if h.r.draining.Load() {
		emptyStream(w, given)
		return true
	}
	key, _, _ := strings.Cut(asked, "_")
	ctx, done, ok := c.openStream(req.Context(), key)
	if !ok {
		return false
	}
	defer done()
	if ctx.Err() != nil {
		emptyStream(w, given) // a newer GET came while we waited for an older one
		return true
	}
	req = req.Clone(ctx)
	req.Header.Del(headerLastEventID)
	if asked != "" {
		req.Header.Set(headerLastEventID, asked)
	}
	sw := &streamWriter{ResponseWriter: w, lastEventID: asked}
	c.sdk.ServeHTTP(sw, req)
	switch sw.refused {
	case http.StatusNotFound:
		forgetError(w.Header())
		return false
	case http.StatusBadRequest, http.StatusConflict:
		// What cannot be replayed here is no reason to end the session.
		forgetError(w.Header())
		emptyStream(w, "")
	}
	return true
}
