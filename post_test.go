package sessionshare

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

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

// What a tool sends while it runs is seen at once; its answer goes out with the
// end of the response, in one write.
func TestLastAnswerGoesOutWithTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T) {
		tell, end := make(chan struct{}), make(chan struct{})
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s := before(req, opts)
				s.AddTool(&mcp.Tool{Name: "telling", InputSchema: map[string]any{"type": "object"}},
					func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						<-tell
						err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
						<-end
						return text("done"), err
					})
				return s
			}
		})
		a := c.nodes[0]
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
