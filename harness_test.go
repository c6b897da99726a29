package sessionshare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// The times of the replicas in these tests.
const (
	testIdle    = 30 * time.Minute
	testRecheck = 2 * time.Second
	testTouch   = time.Minute
)

// virtual runs f in virtual time. Every replica of a cluster is shut down when f
// is over, and a goroutine that then is left fails the test.
func virtual(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// A cluster is some replicas over one backend.
type cluster struct {
	t       *testing.T
	backend *faultBackend
	nodes   []*node
	setups  []setup
}

// A node is one replica with its HTTP handler, its view of the store, and a
// factory that counts.
type node struct {
	*Replica
	http.Handler
	view  *faultView
	log   *logBuffer
	clock *clock

	built       atomic.Int64
	incarnation atomic.Pointer[string]
	entered     chan string // a slow tool has begun; its session ID
	release     chan struct{}
}

// A setup changes how a node is made.
type setup func(*nodeConfig)

type nodeConfig struct {
	n       *node
	opts    Options
	handler mcp.StreamableHTTPOptions
	server  mcp.ServerOptions
	plain   bool // only the three methods of a store
	local   bool // no store
	factory func(*http.Request, *mcp.ServerOptions) *mcp.Server
}

// newCluster makes n replicas. They are shut down with the test, which fails if a
// goroutine of theirs is left.
func newCluster(t *testing.T, n int, setups ...setup) *cluster {
	t.Helper()
	c := &cluster{t: t, backend: newFaultBackend(), setups: setups}
	t.Cleanup(c.backend.late.Wait)
	for range n {
		c.add()
	}
	return c
}

// add makes one more replica, as a process that has just started.
func (c *cluster) add(setups ...setup) *node {
	c.t.Helper()
	n := &node{
		view: c.backend.view(), log: &logBuffer{}, clock: newClock(),
		entered: make(chan string, 64), release: make(chan struct{}),
	}
	n.incarnate("first")
	cfg := &nodeConfig{n: n, factory: n.newServer}
	cfg.opts = Options{
		Principal:       func(req *http.Request) (string, error) { return req.Header.Get("X-User"), nil },
		Endpoint:        n.endpoint,
		Scope:           func(req *http.Request, _ Binding) ([]byte, error) { return []byte(req.Header.Get("X-Scope")), nil },
		IdleTimeout:     testIdle,
		EvictAfter:      testIdle,
		RecheckInterval: testRecheck,
		TouchInterval:   testTouch,
		UnverifiedLimit: testIdle,
		Logger:          slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range append(c.setups, setups...) {
		f(cfg)
	}
	switch {
	case cfg.local:
	case cfg.plain:
		cfg.opts.Store = plainStore{n.view}
	case cfg.opts.Store == nil:
		cfg.opts.Store = n.view
	}
	r, err := New(cfg.opts)
	require.NoError(c.t, err)
	r.now = n.clock.now
	n.Replica = r
	cfg.server.GetSessionID = r.GetSessionID
	n.Handler = r.Handler(func(req *http.Request) *mcp.Server {
		n.built.Add(1)
		return cfg.factory(req, &cfg.server)
	}, &cfg.handler)
	c.nodes = append(c.nodes, n)
	c.t.Cleanup(func() { n.stop(c.t) })
	return n
}

// stop shuts the replica down and checks that nothing of it is left.
func (n *node) stop(t *testing.T) {
	n.view.heal()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, n.Shutdown(ctx), "Shutdown left something running")
}

func (n *node) incarnate(incarnation string) { n.incarnation.Store(&incarnation) }

func (n *node) endpoint(req *http.Request) (Endpoint, error) {
	return Endpoint{Name: req.URL.Path, Incarnation: *n.incarnation.Load()}, nil
}

// letGo ends all slow tools, now and to come.
func (n *node) letGo() { close(n.release) }

// newServer is the factory of a node: what it makes depends on the session's
// scope.
func (n *node) newServer(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
	scope := ""
	if s, ok := SessionFromContext(req.Context()); ok {
		scope = string(s.Binding().Scope)
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	object := map[string]any{"type": "object"}
	s.AddTool(&mcp.Tool{Name: "echo" + scope, InputSchema: object}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		params, _ := json.Marshal(req.Session.InitializeParams())
		return text(req.Session.ID() + " " + string(params)), nil
	})
	// slow obeys its context, deaf does not.
	s.AddTool(&mcp.Tool{Name: "slow", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		n.entered <- req.Session.ID()
		select {
		case <-n.release:
			return text("done"), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	s.AddTool(&mcp.Tool{Name: "deaf", InputSchema: object}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		n.entered <- req.Session.ID()
		<-n.release
		return text("done"), nil
	})
	return s
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

const (
	initParams = `{"protocolVersion":"2025-06-18","capabilities":{"roots":{"listChanged":true},"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}`
	initBody   = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":` + initParams + `}`
	greetBody  = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// A header is one more header of a request: alternating names and values.
type header []string

func user(name string) header { return header{"X-User", name} }

var nextCall atomic.Int64

func callBody(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, 100+nextCall.Add(1), method, params)
}

func toolBody(name string) string {
	return callBody("tools/call", `{"name":"`+name+`","arguments":{}}`)
}

// newRequest makes a request as a client would send it.
func newRequest(method, sid, body string, hs ...header) *http.Request {
	req := httptest.NewRequest(method, "/mcp", strings.NewReader(body))
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if sid != "" {
		req.Header.Set("Mcp-Session-Id", sid)
	}
	for _, h := range hs {
		for i := 0; i+1 < len(h); i += 2 {
			req.Header.Set(h[i], h[i+1])
		}
	}
	return req
}

// do sends a request and returns the whole answer.
func (n *node) do(method, sid, body string, hs ...header) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	n.ServeHTTP(w, newRequest(method, sid, body, hs...))
	return w
}

func (n *node) post(sid, body string, hs ...header) *httptest.ResponseRecorder {
	return n.do(http.MethodPost, sid, body, hs...)
}

// list makes the smallest call and returns the status of its answer.
func (n *node) list(sid string, hs ...header) int {
	return n.post(sid, callBody("tools/list", "{}"), hs...).Code
}

func (n *node) delete(sid string, hs ...header) int {
	return n.do(http.MethodDelete, sid, "", hs...).Code
}

// open opens a session, handshake and all, and returns its ID.
func (n *node) open(t *testing.T, hs ...header) string {
	t.Helper()
	sid := n.initialize(t, hs...)
	w := n.post(sid, greetBody, hs...)
	require.Equal(t, 202, w.Code, w.Body.String())
	return sid
}

func (n *node) initialize(t *testing.T, hs ...header) string {
	t.Helper()
	w := n.post("", initBody, hs...)
	require.Equal(t, 200, w.Code, w.Body.String())
	sid := w.Header().Get("Mcp-Session-Id")
	require.NotEmpty(t, sid)
	return sid
}

// A pending is a request under way.
type pending struct {
	w      *safeRecorder
	cancel context.CancelFunc // the client hangs up
	done   chan struct{}
}

// start sends a request on a goroutine of its own.
func (n *node) start(method, sid, body string, hs ...header) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pending{newSafeRecorder(), cancel, make(chan struct{})}
	go func() {
		defer close(p.done)
		n.ServeHTTP(p.w, newRequest(method, sid, body, hs...).WithContext(ctx))
	}()
	return p
}

// call starts a tool and waits until it runs.
func (n *node) call(sid, tool string, hs ...header) *pending {
	p := n.start(http.MethodPost, sid, toolBody(tool), hs...)
	<-n.entered
	return p
}

// stream opens a GET and waits until it is served.
func (n *node) stream(sid string, hs ...header) *pending {
	p := n.start(http.MethodGet, sid, "", hs...)
	synctest.Wait()
	return p
}

// ended reports whether the request has been answered to its end.
func (p *pending) ended() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// result waits for the end and returns status and body.
func (p *pending) result() (int, string) {
	<-p.done
	return p.w.result()
}

// A safeRecorder is a ResponseRecorder that may be read while it is written.
type safeRecorder struct {
	mu     sync.Mutex // guards all below
	header http.Header
	sent   http.Header // as it was when the status was sent
	status int
	body   bytes.Buffer
}

func newSafeRecorder() *safeRecorder { return &safeRecorder{header: http.Header{}} }

func (w *safeRecorder) Header() http.Header { return w.header }

func (w *safeRecorder) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *safeRecorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.body.Write(b)
}

func (w *safeRecorder) Flush() { w.WriteHeader(http.StatusOK) }

func (w *safeRecorder) result() (int, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status, w.body.String()
}

// A logBuffer holds what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
