package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A Tap stands before the balancer. It knows what each request was and which
// replica answered it, and can break the answer.
type Tap struct {
	URL string

	next   http.Handler
	server *http.Server

	mu        sync.Mutex // guards exchanges, and what is in them but for cut
	exchanges []*Exchange
}

// An Exchange is one request and its answer. Fields are as of the moment at which
// a method of Tap has returned it.
type Exchange struct {
	Method  string // of HTTP
	Session string // ID; of the answer, for initialize
	RPC     string // method of the message; "answer" for one to a question
	Replica int    // -1 until it has answered
	Status  int
	Resume  string // Last-Event-ID
	Began   bool   // something of the body has gone to the client
	Open    bool   // the answer goes on

	cut chan bool // true: by a reset
}

func startTap(next http.Handler) (*Tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &Tap{URL: "http://" + l.Addr().String(), next: next}
	t.server = &http.Server{Handler: t, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = t.server.Serve(l) }()
	return t, nil
}

// Close ends the Tap and all that goes through it.
func (t *Tap) Close() { _ = t.server.Close() }

// Find returns the exchanges that match, oldest first.
func (t *Tap) Find(match func(Exchange) bool) (out []Exchange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.exchanges {
		if match(*e) {
			out = append(out, *e)
		}
	}
	return out
}

// Stream returns the newest open GET of a session.
func (t *Tap) Stream(session string) (Exchange, bool) {
	return last(t.Find(func(e Exchange) bool {
		return e.Method == http.MethodGet && e.Session == session && e.Open && e.Status == http.StatusOK
	}))
}

// Call returns the newest open answer to a tools/call of a session, of which the
// client has got the first event.
func (t *Tap) Call(session string) (Exchange, bool) {
	return last(t.Find(func(e Exchange) bool {
		return e.RPC == "tools/call" && e.Session == session && e.Open && e.Began && e.Status == http.StatusOK
	}))
}

func last(all []Exchange) (Exchange, bool) {
	if len(all) == 0 {
		return Exchange{Replica: -1}, false
	}
	return all[len(all)-1], true
}

// Cut ends the answer of e: cleanly, or by a reset of the connection.
func (e Exchange) Cut(reset bool) {
	select {
	case e.cut <- reset:
	default:
	}
}

// ServeHTTP implements http.Handler.
func (t *Tap) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e := &Exchange{
		Method: req.Method, Session: req.Header.Get("Mcp-Session-Id"), RPC: rpcMethod(body),
		Replica: -1, Open: true, Resume: req.Header.Get("Last-Event-ID"), cut: make(chan bool, 1),
	}
	t.mu.Lock()
	t.exchanges = append(t.exchanges, e)
	t.mu.Unlock()
	defer t.update(func() { e.Open = false })

	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	out := req.Clone(ctx)
	out.Body = io.NopCloser(bytes.NewReader(body))
	tw := &tapWriter{t: t, e: e, w: w, header: http.Header{}}
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		t.next.ServeHTTP(tw, out)
	}()
	select {
	case p := <-done:
		if p != nil {
			panic(p) // the balancer lost its backend, and says so this way
		}
		tw.commit()
	case reset := <-e.cut:
		tw.leave()
		if reset {
			resetConnection(w)
		}
	}
}

func (t *Tap) update(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// resetConnection ends a connection as a crash does.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// rpcMethod returns the method of a message, "answer" for what answers a request.
func rpcMethod(body []byte) string {
	var m struct {
		Method string
		Result json.RawMessage
		Error  json.RawMessage
	}
	if json.Unmarshal(body, &m) != nil {
		return ""
	}
	if m.Result != nil || m.Error != nil {
		return "answer"
	}
	return m.Method
}

// A tapWriter is the ResponseWriter behind the balancer. It may be used after the
// handler in front has returned: then nothing happens.
type tapWriter struct {
	t      *Tap
	e      *Exchange
	header http.Header

	mu   sync.Mutex          // guards all below, and writing
	w    http.ResponseWriter // nil: left
	sent bool
}

func (w *tapWriter) Header() http.Header { return w.header }

func (w *tapWriter) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

// writeHeader is WriteHeader. w.mu is held.
func (w *tapWriter) writeHeader(status int) {
	if w.w == nil || w.sent {
		return
	}
	w.sent = true
	for name, values := range w.header {
		w.w.Header()[name] = values
	}
	w.t.update(func() {
		w.e.Status = status
		if i, err := strconv.Atoi(w.header.Get(headerReplica)); err == nil {
			w.e.Replica = i
		}
		w.e.Session = cmp.Or(w.e.Session, w.header.Get("Mcp-Session-Id"))
	})
	w.w.WriteHeader(status)
}

func (w *tapWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil {
		return 0, net.ErrClosed
	}
	w.writeHeader(http.StatusOK)
	n, err := w.w.Write(b)
	_ = http.NewResponseController(w.w).Flush()
	w.t.update(func() { w.e.Began = true })
	return n, err
}

// FlushError serves http.ResponseController.
func (w *tapWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil {
		return net.ErrClosed
	}
	w.writeHeader(http.StatusOK)
	return http.NewResponseController(w.w).Flush()
}

// commit sends the header if nothing else has.
func (w *tapWriter) commit() { w.WriteHeader(http.StatusOK) }

// leave makes what is still to come go nowhere.
func (w *tapWriter) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.w = nil
}
