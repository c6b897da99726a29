package sessionshare

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A flushRecorder knows what of the body a client has seen before the end.
type flushRecorder struct {
	*safeRecorder
	mu      sync.Mutex // guards flushed
	flushed string
}

func (w *flushRecorder) Flush() {
	w.safeRecorder.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	_, w.flushed = w.result()
}

func (w *flushRecorder) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushed
}

// telling adds a tool that waits for tell, unless it is nil, sends progress, and
// waits for end.
func telling(tell, end <-chan struct{}) setup {
	return func(cfg *nodeConfig) {
		before := cfg.factory
		cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
			s := before(req, opts)
			s.AddTool(&mcp.Tool{Name: "telling", InputSchema: map[string]any{"type": "object"}},
				func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					if tell != nil {
						<-tell
					}
					err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
					<-end
					return text("done"), err
				})
			return s
		}
	}
}

// What a tool sends while it runs is seen at once; its answer goes out with the
// end of the response, in one write.
func TestLastAnswerGoesOutWithTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T) {
		tell, end := make(chan struct{}), make(chan struct{})
		a := newCluster(t, 1, telling(tell, end)).nodes[0]
		sid := a.open(t)
		w := &flushRecorder{safeRecorder: newSafeRecorder()}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.ServeHTTP(w, newRequest("POST", sid, toolBody("telling")))
		}()
		synctest.Wait()
		assert.Empty(t, w.seen())
		close(tell)
		synctest.Wait()
		assert.Contains(t, w.seen(), `"progressToken":"p"`)
		close(end)
		<-done
		assert.NotContains(t, w.seen(), "done")
		_, body := w.result()
		assert.Contains(t, body, "done")
	})
}

// So it is where the body is too long to be looked into.
func TestUnscannedBodyIsAnsweredAsItComes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		end := make(chan struct{})
		a := newCluster(t, 1, telling(nil, end), func(cfg *nodeConfig) { cfg.handler.MaxRequestBodyBytes = -1 }).nodes[0]
		a.Handler.(*handler).limit = 1024 // not 64 MiB
		sid := a.open(t)
		w, done := &flushRecorder{safeRecorder: newSafeRecorder()}, make(chan struct{})
		go func() {
			defer close(done)
			long := `{"x":"` + strings.Repeat("x", 4096) + `"}`
			a.ServeHTTP(w, newRequest("POST", sid, strings.Replace(toolBody("telling"), "{}", long, 1)))
		}()
		time.Sleep(time.Minute)
		seen := w.seen()
		close(end)
		<-done
		require.Contains(t, seen, `"progressToken"`)
	})
}

// A batch is answered call by call: only the last answer waits for the end.
func TestEarlierAnswersOfABatchGoOutAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1).nodes[0]
		old := header{"Mcp-Protocol-Version", "2025-03-26"}
		sid := a.open(t, old)
		w := &flushRecorder{safeRecorder: newSafeRecorder()}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.ServeHTTP(w, newRequest("POST", sid, "["+toolBody("slow")+`,{"jsonrpc":"2.0","id":7,"method":"ping"}]`, old))
		}()
		<-a.entered
		synctest.Wait()
		assert.Contains(t, w.seen(), `"id":7`)
		a.letGo()
		<-done
		assert.NotContains(t, w.seen(), "done")
		_, body := w.result()
		assert.Contains(t, body, "done")
	})
}

// largeCall is a call with an ID of one length and a body that is read into
// memory used again.
func largeCall(id, tool string) string {
	return `{"jsonrpc":"2.0","id":"` + id + `","method":"tools/call","params":{"name":"` + tool + `","arguments":{"x":"` +
		strings.Repeat(id[:1], 2*reusedBody) + `"}}}`
}

// The memory of a large body goes on to other requests when its own is over: the
// calls that have left a handler running are known by their own IDs all the same.
func TestReusedBodyMemoryIsNobodysAnyMore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1).nodes[0]
		sid := a.open(t)
		const orphans = 10
		for i := range orphans {
			p := a.start("POST", sid, largeCall(fmt.Sprint("o", i), "slow"))
			<-a.entered
			p.cancel()
			<-p.done
		}
		var calls []*pending
		for i := range orphans {
			calls = append(calls, a.start("POST", sid, largeCall(fmt.Sprint("c", i), "slow")))
			<-a.entered
		}
		c := a.hosts(t, sid)
		c.cancelOrphans()
		synctest.Wait()
		for i, p := range calls {
			require.False(t, p.ended(), "call %d was cancelled for an orphan", i)
		}
		require.Len(t, c.postsWhere(func(p *post) bool { return p.served }), 0, "an orphan runs on")
		a.letGo()
		for i, p := range calls {
			_, body := p.result()
			require.Contains(t, body, fmt.Sprintf(`"id":"c%d"`, i))
		}
	})
}

// Large bodies of many sessions at once reach the tools of their own calls whole.
func TestLargeBodiesDoNotMix(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddTool(&mcp.Tool{Name: "summary", InputSchema: map[string]any{"type": "object"}},
					func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						args := string(req.Params.Arguments)
						first := args[len(`{"x":"`)]
						return text(fmt.Sprint(string(first), strings.Count(args, string(first)))), nil
					})
				return s
			}
		}).nodes[0]
		var wg sync.WaitGroup
		for _, letter := range "abcdefgh" {
			sid := a.open(t)
			wg.Go(func() {
				for range 10 {
					w := a.post(sid, largeCall(string(letter), "summary"))
					want := fmt.Sprint(string(letter), 2*reusedBody)
					assert.Contains(t, w.Body.String(), want)
				}
			})
		}
		wg.Wait()
	})
}

// When a request is over, the host that still has it finds its body empty: the
// memory may be another's.
func TestReleasedBodyIsEmpty(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1).nodes[0]
		sid := a.open(t)
		// The SDK does not read the body of what it refuses.
		req := newRequest("POST", sid, largeCall("x1", "echo"), header{"Content-Type", "text/plain"})
		w := newSafeRecorder()
		a.ServeHTTP(w, req)
		status, _ := w.result()
		require.Equal(t, 415, status)
		left, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

// A body is read into memory that fits: what waits, or comes slowly, holds little.
func TestReusedMemoryFitsTheBody(t *testing.T) {
	r, err := New(Options{})
	require.NoError(t, err)
	h := r.Handler(nil, nil).(*handler)
	load := func(n int) *body {
		b := &body{req: httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat(" ", n))), h: h}
		return b.load()
	}
	for range 10 {
		big := load(mcp.DefaultMaxRequestBodyBytes - 1)
		big.done = true
		big.release()
		require.LessOrEqual(t, cap(load(reusedBody).data), 4*(reusedBody+1))
	}
}

// A body that is announced to be over the limit is read up to the limit, as by the
// SDK, so that its client can read the answer: net/http resets the connection of one
// that sends much more.
func TestUploadJustOverTheLimit(t *testing.T) {
	h := newBenchHost(t, NewMemoryStore(), 0)
	id := benchOpen(t, h)
	web := httptest.NewServer(h)
	defer web.Close()
	conn, err := net.Dial("tcp", web.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	const chunk, chunks = 64 << 10, mcp.DefaultMaxRequestBodyBytes/(64<<10) + 2
	_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n", web.Listener.Addr(), id, chunk*chunks)
	require.NoError(t, err)
	for i := range chunks {
		_, err := conn.Write(make([]byte, chunk))
		require.NoError(t, err, "chunk %d", i)
		time.Sleep(5 * time.Millisecond)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 413, res.StatusCode)
}
