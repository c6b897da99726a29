package interop

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

// Here times are real: proxies and kernels know no others.
const (
	// proxyPatience is nginx's proxy_read_timeout where nobody has set it.
	proxyPatience = time.Minute
	// silence is more than two of these.
	silence = 130 * time.Second
)

// TestSilentStream shows that a stream on which nothing happens outlives the
// patience of a proxy. Without heartbeats the same proxy ends it.
func TestSilentStream(t *testing.T) {
	if testing.Short() {
		t.Skip("takes over two minutes, in which next to nothing happens")
	}
	t.Parallel()
	// All at once, whatever -parallel says.
	var all sync.WaitGroup
	defer all.Wait()
	for _, m := range makers(t) {
		all.Go(func() { t.Run("heartbeats/"+m.Name, func(t *testing.T) { staysOpen(t, m) }) })
	}
	all.Go(func() { t.Run("none", isEnded) })
}

// staysOpen checks that what the server has to say after the silence comes on the
// stream from before it.
func staysOpen(t *testing.T, m Maker) {
	c, err := m.New()
	if err != nil {
		t.Fatal(err)
	}
	s := startSingle(t, sessionshare.Options{})
	tap := s.connect(t, c)
	time.Sleep(silence)
	s.server.AddTool(&mcp.Tool{Name: "late", InputSchema: map[string]any{"type": "object"}}, nil)
	if c.Seen().Await(t.Context(), 10*time.Second, 0, 1, Is("tools", "")) == 0 {
		t.Error("what came after the silence did not arrive")
	}
	if all := gets(tap, c); len(all) != 1 || !all[0].Open {
		t.Errorf("the stream from before the silence was not kept: %d were opened", len(all))
	}
}

// isEnded checks that it is heartbeats which keep a stream.
func isEnded(t *testing.T) {
	c := newGoClient()
	s := startSingle(t, sessionshare.Options{StreamHeartbeat: -1})
	tap := s.connect(t, c)
	const some = 10 * time.Second
	began := time.Now()
	time.Sleep(proxyPatience - some)
	if !gets(tap, c)[0].Open {
		t.Error("the stream ended before its time")
	}
	// The client opens another one; it is the first that counts.
	if !Eventually(t.Context(), 2*some, func() bool { return !gets(tap, c)[0].Open }) {
		t.Error("the proxy did not end a silent stream, so this test shows nothing")
	}
	t.Logf("the proxy ended it after %v", time.Since(began).Round(100*time.Millisecond))
}

// connect connects a client through the proxy, and waits for its stream. The client
// is closed with the test.
func (s *single) connect(t *testing.T, c Client) *Tap {
	tap, err := startTap(impatient(s.url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := c.Connect(ctx, tap.URL); err != nil {
		t.Fatal(err)
	}
	if !Eventually(ctx, stepTime, func() bool { _, open := tap.Stream(c.SessionID()); return open }) {
		t.Fatal("no stream")
	}
	return tap
}

// gets returns all streams that a client has opened, oldest first.
func gets(tap *Tap, c Client) []Exchange {
	return tap.Find(func(e Exchange) bool { return e.Method == http.MethodGet && e.Session == c.SessionID() })
}

// impatient is a proxy that ends an answer which has brought nothing for as long
// as its patience lasts.
func impatient(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return impatientConn{conn}, err
			},
		},
	}
}

type impatientConn struct{ net.Conn }

func (c impatientConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(proxyPatience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// A single is one replica, without a balancer.
type single struct {
	replica *sessionshare.Replica
	server  *mcp.Server
	url     *url.URL
	left    chan struct{} // gets one for each GET that is over
}

func startSingle(t *testing.T, o sessionshare.Options) *single {
	o.Store = sessionshare.NewMemoryStore()
	r, err := sessionshare.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &single{replica: r, server: newServer(0, &Journal{}, r.GetSessionID), left: make(chan struct{}, 100)}
	h := r.Handler(func(*http.Request) *mcp.Server { return s.server }, nil)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.ServeHTTP(w, req)
		if req.Method == http.MethodGet {
			s.left <- struct{}{}
		}
	}))
	web.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(16 << 10) // one message fills it
		return ctx
	}
	web.Start()
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		_ = r.Shutdown(context.Background())
	})
	if s.url, err = url.Parse(web.URL); err != nil {
		t.Fatal(err)
	}
	return s
}
