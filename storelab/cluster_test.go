//go:build unix

package storelab

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

// The times of the replicas in fault tests. RecheckInterval is set, so that all
// stores are held to one bound, with hints or without.
const (
	recheckInterval = 500 * time.Millisecond
	storeTimeout    = sessionshare.DefaultStoreTimeout
)

// A replica is one process of the gateway: a Replica, its handler, its store.
type replica struct {
	*sessionshare.Replica
	handler http.Handler
	store   sessionshare.SharedStore
}

// newReplica makes a replica over a store. Its server has one tool, upstream,
// which answers with what is to exist once per session, and those that more adds.
func newReplica(t testing.TB, opts sessionshare.Options, more ...func(*mcp.Server)) *replica {
	t.Helper()
	r, err := sessionshare.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "lab", Version: "1"}, &mcp.ServerOptions{GetSessionID: r.GetSessionID})
	server.AddTool(&mcp.Tool{Name: "upstream", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			s, _ := sessionshare.SessionFromContext(ctx)
			who, _, err := s.LoadOrStore(ctx, "upstream", []byte(rand.Text()))
			if err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "upstream=" + string(who) + ";"}}}, nil
		})
	for _, add := range more {
		add(server)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	return &replica{Replica: r, handler: r.Handler(func(*http.Request) *mcp.Server { return server }, nil), store: opts.Store}
}

const (
	initBody = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"lab","version":"1"}}}`
	initedMs = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	rootsMsg = `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`
)

var nextID atomic.Int64

func call(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, 1+nextID.Add(1), method, params)
}

func listTools() string { return call("tools/list", "{}") }
func upstream() string  { return call("tools/call", `{"name":"upstream","arguments":{}}`) }

// do sends one request and returns the whole answer.
func (r *replica) do(ctx context.Context, method, id, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(ctx, method, "/mcp", strings.NewReader(body))
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if id != "" {
		req.Header.Set("Mcp-Session-Id", id)
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	return w
}

// open opens a session, handshake and all, where nothing is out of order.
func (r *replica) open(t testing.TB) string {
	t.Helper()
	w := r.do(context.Background(), http.MethodPost, "", initBody)
	id := w.Header().Get("Mcp-Session-Id")
	if w.Code != http.StatusOK || id == "" {
		t.Fatalf("initialize was answered %d %s", w.Code, w.Body)
	}
	if w := r.do(context.Background(), http.MethodPost, id, initedMs); w.Code != http.StatusAccepted {
		t.Fatalf("initialized was answered %d %s", w.Code, w.Body)
	}
	return id
}
