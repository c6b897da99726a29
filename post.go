package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
)

// errCopyGone says that the SDK session of a copy was gone before the request
// reached it: the session is resumed, and the request served again.
var errCopyGone = errors.New("sessionshare: the SDK session is gone")

// servePOST serves a POST on c. It returns errCopyGone, with nothing written, if
// the copy's SDK session turned out to be gone and the message has not reached it,
// and other errors before the SDK has seen anything that counts.
func (h *handler) servePOST(c *hostedCopy, w http.ResponseWriter, req *http.Request, b *body) error {
	pw := &b.writer
	if pw.c != nil {
		*pw = postWriter{} // it was tried before, on a copy that was gone
	}
	pw.ResponseWriter, pw.c, pw.batch = w, c, b.batch
	p := &pw.post
	p.header = req.Header
	p.calls = p.one[:0]
	other := false // something that may be meant for another replica
	b.each(func(m *message) {
		switch {
		case m.call() && b.buffer != nil:
			p.calls = append(p.calls, bytes.Clone(m.id)) // the body's memory goes on to others
		case m.call():
			p.calls = append(p.calls, m.id)
		default:
			other = true
		}
	})
	pw.waiting = len(p.calls)
	req.Body = b.again()
	if other && b.rest == nil {
		if answered, err := h.relay(c, pw, req, b); answered || err != nil {
			return err
		}
	}
	if h.events != nil && len(p.calls) > 0 {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		p.stream = &postStream{cancel: cancel, done: make(chan struct{})}
		defer close(p.stream.done)
		req = req.WithContext(ctx)
	}
	c.begin(p)
	func() {
		defer c.answered(p)
		c.sdk.ServeHTTP(pw, req)
	}()
	switch {
	case pw.lost && b.untouched():
		forgetError(w.Header())
		return errCopyGone
	case pw.lost:
		forgetError(w.Header())
		h.r.answer(w, req, unsure("the SDK closed the session", ErrEvicted))
	case pw.waiting > 0 && pw.status < 300 && req.Context().Err() == nil && c.unanswered(p):
		pw.giveUp(p.calls)
	}
	b.done = !other
	return nil
}

// relay handles what a POST holds besides calls. What is meant for another replica
// goes there, once the SDK has had no objections to the request; its answer is
// then the answer. It returns false if the SDK is yet to be asked, with the body
// as it may see it.
func (h *handler) relay(c *hostedCopy, pw *postWriter, req *http.Request, b *body) (answered bool, err error) {
	data, answers, relays, err := c.incoming(b)
	if err != nil {
		return false, err
	}
	b.reader.data.Reset(data)
	pw.answers = answers
	if len(relays) == 0 {
		return false, nil
	}
	if len(pw.post.calls) > 0 {
		return false, c.forward(req.Context(), relays)
	}
	verdict := newRecorded()
	c.begin(&pw.post)
	func() {
		defer c.answered(&pw.post)
		c.sdk.ServeHTTP(verdict, req)
	}()
	if verdict.lost() {
		return false, errCopyGone
	}
	if verdict.status == http.StatusAccepted {
		pw.answered()
		if err := c.forward(req.Context(), relays); err != nil {
			return false, err
		}
	}
	verdict.sendTo(pw.ResponseWriter)
	return true, nil
}

// A postWriter is the ResponseWriter of a POST. It catches the SDK's own 404,
// which would strand the client, and counts answers, so that a call which cannot
// be answered any more does not end with an empty 200.
type postWriter struct {
	http.ResponseWriter
	c       *hostedCopy
	post    post
	split   sseSplitter
	waiting int      // calls whose answer was not written
	answers []string // questions of this copy that the body answers
	status  int
	batch   bool
	lost    bool
}

func (w *postWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *postWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if isLost(status, w.Header()) {
		w.lost = true
		return
	}
	w.status = status
	if status == http.StatusOK || status == http.StatusAccepted {
		w.answered()
	}
	w.ResponseWriter.WriteHeader(status)
}

// answered notes that the SDK has the answers: nobody looks for others. Those of
// a body that it refused were none.
func (w *postWriter) answered() {
	for _, number := range w.answers {
		w.c.r.asks.drop(w.c, number)
	}
}

func (w *postWriter) Write(b []byte) (int, error) {
	if w.lost {
		return len(b), nil
	}
	if w.status == 0 {
		w.status = http.StatusOK
		w.answered()
	}
	switch kind := contentType(w.Header()); {
	case strings.HasPrefix(kind, "application/json"):
		w.waiting = 0
		return w.ResponseWriter.Write(b)
	case !strings.HasPrefix(kind, "text/event-stream"):
		return w.ResponseWriter.Write(b)
	}
	if err := w.split.split(b, w.event); err != nil {
		return 0, err
	}
	return len(b), nil
}

// FlushError sends out what was written, but for the last answer: the request
// ends right behind it, and with it goes the end of the response. That saves the
// server a write, and the client a read, of every call.
func (w *postWriter) FlushError() error {
	if len(w.post.calls) > 0 && w.waiting == 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// event sends one event of the SDK's.
func (w *postWriter) event(text []byte) error {
	out, e := w.c.clientEvent(text)
	if w.waiting > 0 && e.answers() {
		w.waiting--
	}
	w.nameStream(e.id)
	_, err := w.ResponseWriter.Write(out)
	return err
}

// A postStream is the answer to a POST where an EventStore keeps it: the client can
// take it up with a GET.
type postStream struct {
	name   string // the SDK's; "" before its first event; guarded by hostedCopy.mu
	cancel context.CancelFunc
	done   chan struct{} // closed when the POST has left the SDK
}

// nameStream learns the name of the stream from the ID of its first event.
func (w *postWriter) nameStream(id []byte) {
	s := w.post.stream
	if s == nil || s.name != "" || len(id) == 0 {
		return
	}
	name, _, _ := strings.Cut(string(id), "_")
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	s.name = name
}

// takeUp ends the POST whose answer a client takes up with a GET, and waits for
// it: the newest request for a stream wins, for the older one's connection may be
// dead without anybody having noticed. The SDK would answer 409.
func (c *hostedCopy) takeUp(ctx context.Context, stream string) {
	var old *postStream
	c.mu.Lock()
	for _, p := range c.posts {
		if p.stream != nil && p.stream.name == stream {
			old = p.stream
		}
	}
	c.mu.Unlock()
	if old == nil {
		return
	}
	old.cancel()
	select {
	case <-old.done:
	case <-ctx.Done():
	}
}

func (w *postWriter) isJSON() bool {
	return strings.HasPrefix(contentType(w.Header()), "application/json")
}

// contentType is Header.Get, for what every call needs.
func contentType(h http.Header) string {
	if v := h["Content-Type"]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// How the SDK writes its messages.
var (
	answerHead = []byte(`{"jsonrpc":"2.0","id":`)
	resultNext = []byte(`,"result":`)
	methodNext = []byte(`,"method":`)
)

// tellingKey tells what kind of message data is, by its first telling key: the SDK
// puts the id before it, and what comes after may be large.
func tellingKey(data []byte) (found string) {
	if bytes.HasPrefix(data, answerHead) { // an answer, most likely: without scanning
		i := max(skipValue(data, len(answerHead)), 0)
		switch rest := data[i:]; {
		case bytes.HasPrefix(rest, resultNext):
			return "result"
		case bytes.HasPrefix(rest, methodNext):
			return "method"
		}
	}
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return ""
	}
	scanKeys(data, i, func(key []byte) bool {
		for _, telling := range [...]string{"method", "result", "error"} {
			if string(key) == telling {
				found = telling
				return false
			}
		}
		return true
	})
	return found
}

// unanswered is the answer to a call that cannot be answered any more.
func unanswered(id rawID) string {
	return `{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":-32000,"message":"The session ended before this request was answered"}}`
}

// giveUp answers what is left of calls with an error.
func (w *postWriter) giveUp(calls []rawID) {
	var out strings.Builder
	switch {
	case !w.isJSON():
		for _, id := range calls {
			// A second answer to a call of a batch is ignored by clients; none is not.
			out.WriteString("event: message\ndata: " + unanswered(id) + "\n\n")
		}
	case w.batch:
		for i, id := range calls {
			out.WriteString([]string{"[", ","}[min(i, 1)] + unanswered(id))
		}
		out.WriteString("]")
	default:
		out.WriteString(unanswered(calls[0]))
	}
	_, _ = w.ResponseWriter.Write([]byte(out.String()))
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}
