package sessionshare

import (
	"bytes"
	"net/http"
	"strings"
)

// servePOST serves a POST on c. It returns false, with nothing written, if the
// copy's SDK session turned out to be gone and the message has not reached it.
func (h *handler) servePOST(c *hostedCopy, w http.ResponseWriter, req *http.Request, b *body) bool {
	pw := &b.writer
	*pw = postWriter{ResponseWriter: w, batch: b.batch, post: post{header: req.Header}}
	p := &pw.post
	p.calls = p.one[:0]
	b.each(func(m *message) {
		if m.call() {
			p.calls = append(p.calls, m.id)
		}
	})
	pw.waiting = len(p.calls)
	req.Body = b.again()
	c.begin(p)
	func() {
		defer c.answered(p)
		c.sdk.ServeHTTP(pw, req)
	}()
	switch {
	case pw.lost && b.untouched():
		forgetError(w.Header())
		return false
	case pw.lost:
		forgetError(w.Header())
		h.r.answer(w, req, unsure("the SDK closed the session", ErrEvicted))
	case pw.waiting > 0 && pw.status < 300 && req.Context().Err() == nil && !p.handedOver:
		pw.giveUp(p.calls)
	}
	return true
}

// A postWriter is the ResponseWriter of a POST. It catches the SDK's own 404,
// which would strand the client, and counts answers, so that a call which cannot
// be answered any more does not end with an empty 200.
type postWriter struct {
	http.ResponseWriter
	post    post
	waiting int // calls whose answer was not written
	batch   bool
	status  int
	lost    bool
}

func (w *postWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *postWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	// The SDK's 404 for "method not found", in protocol versions to come, is JSON.
	if status == http.StatusNotFound && strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		w.lost = true
		return
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *postWriter) Write(b []byte) (int, error) {
	if w.lost {
		return len(b), nil
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.waiting > 0 && w.status == http.StatusOK {
		w.count(b)
	}
	return w.ResponseWriter.Write(b)
}

// count takes note of the answers in b: the SDK writes an SSE event, or a JSON
// body, in one piece.
func (w *postWriter) count(b []byte) {
	if w.isJSON() {
		w.waiting = 0
		return
	}
	if _, data, ok := bytes.Cut(b, []byte("data: ")); ok && isResponse(data) {
		w.waiting--
	}
}

func (w *postWriter) isJSON() bool {
	ct := w.Header()["Content-Type"]
	return len(ct) > 0 && strings.HasPrefix(ct[0], "application/json")
}

// isResponse reports whether data begins with a JSON-RPC response. The SDK puts
// the id first; nothing after the first telling key is looked at.
func isResponse(data []byte) bool {
	response := false
	if i := skipSpace(data, 0); i < len(data) && data[i] == '{' {
		scanKeys(data, i, func(key []byte) bool {
			switch string(key) {
			case "method":
				return false
			case "result", "error":
				response = true
				return false
			}
			return true
		})
	}
	return response
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
