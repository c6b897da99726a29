package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/roundrobin"
)

// How the load balancer of these tests works: it asks often, and gateways wait for
// a bit more than two rounds of it.
const (
	asks    = 100 * time.Millisecond
	noticed = 400 * time.Millisecond
)

// A fleet is three gateways over one store and one registry, behind a round-robin
// proxy that follows their readiness.
type fleet struct {
	t     *testing.T
	cfg   config
	url   string // of the proxy
	admin string // a token
	demo  *demo
	all   [3]*running

	past sessionshare.Stats // of gateways that are no more
}

// running is one gateway that serves.
type running struct {
	*gateway
	addr string
	stop context.CancelFunc
	done chan error
}

// newFleet starts the gateways. The upstreams are those of the demo, and more.
func newFleet(t *testing.T, more map[string]*mcp.Server) *fleet {
	t.Helper()
	reg, err := openRegistry(t.TempDir())
	require.NoError(t, err)
	f := &fleet{t: t}
	f.demo, err = startDemo()
	require.NoError(t, err)
	t.Cleanup(f.demo.close)
	for name, server := range more {
		require.NoError(t, f.demo.add(name, server))
	}
	f.cfg = config{
		store: sessionshare.NewMemoryStore(), registry: reg, upstreams: f.demo.urls, stateful: f.demo.stateful,
		log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})), noticed: noticed, grace: 10 * time.Second,
	}
	f.admin, _, err = reg.issue("root", "", []string{adminScope}, time.Hour)
	require.NoError(t, err)
	var addrs []string
	for i := range f.all {
		f.start(i, "127.0.0.1:0")
		addrs = append(addrs, f.all[i].addr)
	}
	t.Cleanup(func() {
		for _, r := range f.all {
			r.stop()
		}
		for _, r := range f.all {
			require.NoError(t, <-r.done)
		}
	})
	proxy := roundrobin.New(roundrobin.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	watched := proxy.Watch(ctx, "/readyz", asks, addrs...)
	front := httptest.NewServer(proxy)
	t.Cleanup(func() { cancel(); <-watched; front.CloseClientConnections(); front.Close(); proxy.Close() })
	f.url = front.URL
	return f
}

func (f *fleet) start(i int, addr string) {
	f.t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(f.t, err)
	cfg := f.cfg
	cfg.name = string(rune('a' + i))
	g, err := newGateway(cfg)
	require.NoError(f.t, err)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{gateway: g, addr: l.Addr().String(), stop: stop, done: make(chan error, 1)}
	go func() { r.done <- g.serve(ctx, l) }()
	f.all[i] = r
}

// restart ends a gateway as SIGTERM does, starts another one in its place and waits
// until the load balancer has noticed.
func (f *fleet) restart(i int) {
	f.t.Helper()
	old := f.all[i]
	old.stop()
	require.NoError(f.t, <-old.done)
	f.past = add(f.past, old.share.Stats())
	f.start(i, old.addr)
	time.Sleep(noticed)
}

// stats sums up all gateways there were.
func (f *fleet) stats() sessionshare.Stats {
	sum := f.past
	for _, r := range f.all {
		sum = add(sum, r.share.Stats())
	}
	return sum
}

func add(a, b sessionshare.Stats) sessionshare.Stats {
	a.Hosted += b.Hosted
	a.Opened += b.Opened
	a.Resumed += b.Resumed
	a.Gone += b.Gone
	a.Closed += b.Closed
	return a
}

// do sends a request to the admin routes, and returns the status and the answer.
func (f *fleet) do(method, path, body string) (int, map[string]any) {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	require.NoError(f.t, err)
	req.Header.Set("Authorization", "Bearer "+f.admin)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(f.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	var answer map[string]any
	_ = json.Unmarshal(data, &answer)
	return resp.StatusCode, answer
}

func (f *fleet) create(name string, upstreams ...string) {
	f.t.Helper()
	body, err := json.Marshal(map[string]any{"upstreams": upstreams})
	require.NoError(f.t, err)
	status, _ := f.do(http.MethodPut, "/admin/endpoints/"+name, string(body))
	require.Equal(f.t, http.StatusOK, status)
}

// token gets a token for a user, under a new grant if grant is "".
func (f *fleet) token(user, grant string) (secret, grantID string) {
	f.t.Helper()
	body, err := json.Marshal(map[string]any{"user": user, "grant": grant, "seconds": 60})
	require.NoError(f.t, err)
	status, answer := f.do(http.MethodPost, "/admin/tokens", string(body))
	require.Equal(f.t, http.StatusOK, status)
	return answer["token"].(string), answer["grant"].(string)
}

// A person is whose client sends a token, and headers besides.
type person struct {
	token  atomic.Pointer[string]
	header http.Header
}

func bearer(token string) *person {
	p := &person{header: http.Header{}}
	p.token.Store(&token)
	return p
}

// RoundTrip implements http.RoundTripper.
func (p *person) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+*p.token.Load())
	for name, values := range p.header {
		req.Header[name] = values
	}
	return http.DefaultTransport.RoundTrip(req)
}

// connect opens a session through the proxy.
func (f *fleet) connect(p *person, endpoint string) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	return client.Connect(f.t.Context(), &mcp.StreamableClientTransport{
		Endpoint: f.url + "/mcp/" + endpoint, HTTPClient: &http.Client{Transport: p},
	}, nil)
}

// status asks one gateway for the tools of a session, and returns the status and
// the body.
func (f *fleet) status(i int, p *person, endpoint, sessionID string) (int, string) {
	f.t.Helper()
	body := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
	req, err := http.NewRequest(http.MethodPost, "http://"+f.all[i].addr+"/mcp/"+endpoint, body)
	require.NoError(f.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", sessionID)
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	resp, err := p.RoundTrip(req)
	require.NoError(f.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	return resp.StatusCode, string(data)
}

// everywhere requires that all gateways answer so, soon.
func (f *fleet) everywhere(want int, p *person, endpoint, sessionID string) {
	f.t.Helper()
	for i := range f.all {
		require.Eventually(f.t, func() bool {
			got, _ := f.status(i, p, endpoint, sessionID)
			return got == want
		}, recheck+sessionshare.DefaultStoreTimeout, 20*time.Millisecond, "gateway %d", i)
	}
}

// said returns the text of a tool's answer.
func said(t *testing.T, cs *mcp.ClientSession, tool string, args any) string {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	require.NoError(t, err)
	require.False(t, res.IsError, "%v", res.Content)
	return res.Content[0].(*mcp.TextContent).Text
}

// testLog shows what gateways log, if the test fails.
type testLog struct{ t *testing.T }

var logging sync.Mutex

func (l testLog) Write(p []byte) (int, error) {
	logging.Lock()
	defer logging.Unlock()
	if l.t.Context().Err() == nil { // not during clean-up, which may outlive the test's log
		l.t.Log(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}
