package sessionshare

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Requests of the library's own, through the SDK handler of a copy: replays,
// cancellations, and what came from other replicas.

// deliver sends one message, which the library made, through the copy's SDK
// handler, and returns its answer. It waits for no handler if body is a
// notification or a response. handled says that a handler will see it.
func (c *hostedCopy) deliver(body []byte, handled bool) *recorded {
	w, req := newRecorded(), c.internalRequest(body)
	p := &post{header: req.Header, internal: true, awaited: handled}
	c.begin(p)
	defer c.answered(p)
	c.sdk.ServeHTTP(w, req)
	return w
}

// internalRequest makes a request of the library's own on this session.
func (c *hostedCopy) internalRequest(body []byte) *http.Request {
	c.mu.Lock()
	from := c.origin
	c.mu.Unlock()
	req := from.request(c.rec.Path)
	setBody(req, body)
	req.Header.Set(headerSessionID, c.id)
	return req
}

// An origin is what the library's own requests on a copy take from the request
// for which the copy was made.
type origin struct {
	ctx    context.Context // its values
	host   string
	header http.Header // its other headers; only while the copy is made; guarded by hostedCopy.mu
}

func (o *origin) request(path string) *http.Request {
	req := &http.Request{
		URL: &url.URL{Path: path}, Host: o.host, Header: o.header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if req.Header == nil {
		req.Header = http.Header{}
	}
	return req.WithContext(o.ctx)
}

// setBody makes req a POST of body, as a client would send it.
func setBody(req *http.Request, body []byte) {
	req.Method = http.MethodPost
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.ContentLength = int64(len(body))
}

// recorded is a ResponseWriter that keeps the answer.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newRecorded() *recorded { return &recorded{header: http.Header{}} }

func (w *recorded) Header() http.Header { return w.header }

func (w *recorded) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorded) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// lost reports whether the answer is the SDK's 404 for a session that is gone.
func (w *recorded) lost() bool { return isLost(w.status, w.header) }

// isLost tells the SDK's 404 from that for "method not found", in protocol
// versions to come, which is JSON.
func isLost(status int, h http.Header) bool {
	return status == http.StatusNotFound && strings.HasPrefix(h.Get("Content-Type"), "text/plain")
}

// sendTo sends the recorded answer.
func (w *recorded) sendTo(out http.ResponseWriter) {
	for name, values := range w.header {
		out.Header()[name] = values
	}
	if w.status != 0 {
		out.WriteHeader(w.status)
	}
	if w.body.Len() > 0 {
		_, _ = out.Write(w.body.Bytes())
	}
}
