package sessionshare

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// Every benchmark has the bare SDK (bare) and the library around it (shared) in
// the same run, with the same server, the same options and the same requests.
// docs/BENCHMARKS.md has the command that makes a table of them.

const (
	benchInit = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"bench","version":"1"}}}`
	benchCall = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`
	benchPing = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
)

// A benchHost is a gateway under test. Its factory has `tools` tools; with none
// it returns one static server.
type benchHost struct {
	http.Handler
	replica *Replica // nil for the bare SDK
}

// newBenchHost makes a gateway around the bare SDK (store nil) or the library.
func newBenchHost(tb testing.TB, store SharedStore, tools int) *benchHost {
	h := &benchHost{}
	opts := &mcp.ServerOptions{}
	if store != nil {
		h.replica = newBenchReplica(tb, store)
		opts.GetSessionID = h.replica.GetSessionID
	}
	static := benchServer(opts, 1)
	factory := func(*http.Request) *mcp.Server { return static }
	if tools > 0 {
		factory = func(*http.Request) *mcp.Server { return benchServer(opts, tools) }
	}
	if h.replica != nil {
		h.Handler = h.replica.Handler(factory, nil)
	} else {
		h.Handler = mcp.NewStreamableHTTPHandler(factory, nil)
	}
	return h
}

func newBenchReplica(tb testing.TB, store SharedStore) *Replica {
	r, err := New(Options{
		Store:     store,
		Principal: func(*http.Request) (string, error) { return "alice", nil },
		Endpoint:  func(*http.Request) (Endpoint, error) { return Endpoint{"/mcp", "1"}, nil },
	})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Shutdown(ctx)
	})
	return r
}

func benchServer(opts *mcp.ServerOptions, tools int) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, opts)
	echo := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ok"}}}, nil
	}
	schema := map[string]any{"type": "object"}
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: schema}, echo)
	for i := 1; i < tools; i++ {
		s.AddTool(&mcp.Tool{Name: fmt.Sprint("tool-", i), InputSchema: schema}, echo)
	}
	return s
}

// A benchRequest sends one message again and again, and costs little itself.
type benchRequest struct {
	body   []byte
	reader benchBody
	req    *http.Request
	w      benchWriter
}

type benchBody struct{ bytes.Reader }

func (*benchBody) Close() error { return nil }

func newBenchRequest(session, body string) *benchRequest {
	q := &benchRequest{body: []byte(body)}
	q.req = &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/mcp"}, Host: "gateway.test",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(body)),
		Header: http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
			"Authorization": {"Bearer 0123456789"}, "User-Agent": {"bench/1"},
		},
	}
	if session != "" {
		q.req.Header[headerSessionID] = []string{session}
	}
	q.w.header = http.Header{}
	return q
}

// send has h serve the message, and reports whether it answered with 200.
func (q *benchRequest) send(h http.Handler) bool {
	q.with()
	clear(q.w.header)
	q.w.status = 0
	h.ServeHTTP(&q.w, q.req)
	return q.w.status == http.StatusOK
}

type benchWriter struct {
	header http.Header
	status int
}

func (w *benchWriter) Header() http.Header { return w.header }
func (w *benchWriter) Flush()              {}
func (w *benchWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *benchWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}

// benchOpen opens a session on h.
func benchOpen(tb testing.TB, h http.Handler) (id string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, newBenchRequest("", benchInit).with())
	require.Equal(tb, http.StatusOK, w.Code, w.Body.String())
	id = w.Header().Get(headerSessionID)
	w = httptest.NewRecorder()
	h.ServeHTTP(w, newBenchRequest(id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`).with())
	require.Equal(tb, http.StatusAccepted, w.Code, w.Body.String())
	return id
}

// with returns the request with its body in place, to be sent once.
func (q *benchRequest) with() *http.Request {
	q.reader.Reset(q.body)
	q.req.Body = &q.reader
	return q.req
}

// benchBoth runs f for the bare SDK and for the library.
func benchBoth(b *testing.B, tools int, f func(b *testing.B, h *benchHost)) {
	b.Run("bare", func(b *testing.B) { f(b, newBenchHost(b, nil, tools)) })
	b.Run("shared", func(b *testing.B) { f(b, newBenchHost(b, NewMemoryStore(), tools)) })
}

func benchSend(b *testing.B, h *benchHost, body string) {
	q := newBenchRequest(benchOpen(b, h), body)
	defer benchCPU(b)()
	for b.Loop() {
		if !q.send(h) {
			b.Fatalf("status %d", q.w.status)
		}
	}
}

// BenchmarkHostedCall is a tool call of a session that is hosted here.
func BenchmarkHostedCall(b *testing.B) {
	b.Run("static", func(b *testing.B) {
		benchBoth(b, 0, func(b *testing.B, h *benchHost) { benchSend(b, h, benchCall) })
	})
	b.Run("factory50", func(b *testing.B) {
		benchBoth(b, 50, func(b *testing.B, h *benchHost) { benchSend(b, h, benchCall) })
	})
}

// BenchmarkBody is a tool call with arguments of some size.
func BenchmarkBody(b *testing.B) {
	for _, c := range []struct{ name, body string }{
		{"ping", benchPing},
		{"4KiB", benchCallWith(benchString(4 << 10))},
		{"1MiB-string", benchCallWith(benchString(1 << 20))},
		{"1MiB-array", benchCallWith(benchArray(1 << 20))},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchBoth(b, 0, func(b *testing.B, h *benchHost) { benchSend(b, h, c.body) })
		})
	}
}

// BenchmarkOpen is an initialize: with the library, its record is stored before
// the answer goes out. The session is closed outside the measurement.
func BenchmarkOpen(b *testing.B) {
	benchBoth(b, 0, func(b *testing.B, h *benchHost) {
		q := newBenchRequest("", benchInit)
		b.ReportAllocs()
		var ids []string
		drop := func() {
			b.StopTimer()
			for _, id := range ids {
				del := newBenchRequest(id, "")
				del.req.Method = http.MethodDelete
				del.send(h)
			}
			ids = ids[:0]
			b.StartTimer()
		}
		for range b.N {
			if !q.send(h) {
				b.Fatalf("status %d", q.w.status)
			}
			if ids = append(ids, q.w.header.Get(headerSessionID)); len(ids) == 256 {
				drop()
			}
		}
		drop()
	})
}

// BenchmarkResume is the first call of a session on a replica that does not host
// it: two internal requests and the call. The bare SDK can only open once more
// and call: initialize, initialized, call.
func BenchmarkResume(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		h := newBenchHost(b, nil, 0)
		defer benchCPU(b)()
		for range b.N {
			q := newBenchRequest(benchOpen(b, h), benchCall)
			require.True(b, q.send(h))
		}
	})
	b.Run("shared", func(b *testing.B) {
		h := newBenchHost(b, NewMemoryStore(), 0)
		id := benchOpen(b, h)
		q := newBenchRequest(id, benchCall)
		defer benchCPU(b)()
		for range b.N {
			c, ok := h.replica.lookup(id)
			require.True(b, ok)
			c.end(ErrEvicted)
			if !q.send(h) {
				b.Fatalf("status %d", q.w.status)
			}
		}
	})
}
