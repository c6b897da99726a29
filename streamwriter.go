package sessionshare

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

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
