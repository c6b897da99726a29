package roundrobin

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// backend starts a server and returns its host:port.
func backend(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// named answers with a name and the body it got.
func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		fmt.Fprint(w, name, string(b))
	}
}

// dead returns the address of a port where nobody listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func front(t *testing.T, opts Options, backends ...string) (*Proxy, string) {
	t.Helper()
	p := New(opts, backends...)
	s := httptest.NewServer(p)
	t.Cleanup(func() { s.Close(); p.Close() })
	return p, s.URL
}

// client has no connection pool: what is tested is the proxy's.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

func do(t *testing.T, method, url string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func get(t *testing.T, url string) string {
	t.Helper()
	_, body := do(t, http.MethodGet, url, nil)
	return body
}

func TestEveryRequestGoesToTheNext(t *testing.T) {
	for _, keep := range []bool{false, true} {
		_, url := front(t, Options{KeepAlive: keep}, backend(t, named("a")), backend(t, named("b")), backend(t, named("c")))
		var order strings.Builder
		for i := range 7 {
			method := []string{http.MethodGet, http.MethodDelete, http.MethodPost}[i%3]
			_, body := do(t, method, url, nil)
			order.WriteString(body)
		}
		require.Equal(t, "abcabca", order.String(), "keep alive %v", keep)
	}
}

func TestConcurrentRequestsAreSharedOutEqually(t *testing.T) {
	var served [3]atomic.Int64
	var addrs []string
	for i := range served {
		addrs = append(addrs, backend(t, func(http.ResponseWriter, *http.Request) { served[i].Add(1) }))
	}
	_, url := front(t, Options{}, addrs...)
	var wg sync.WaitGroup
	for range 15 {
		wg.Go(func() {
			for range 6 {
				get(t, url)
			}
		})
	}
	wg.Wait()
	for i := range served {
		require.EqualValues(t, 30, served[i].Load(), "backend %d", i)
	}
}

func TestTheClientsHostAndPathReachTheBackend(t *testing.T) {
	_, url := front(t, Options{}, backend(t, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %s %s", req.Host, req.RequestURI, req.Header.Get("Mcp-Session-Id"))
	}))
	req, err := http.NewRequest(http.MethodGet, url+"/mcp/a%2Fb?x=1", nil)
	require.NoError(t, err)
	req.Host = "gateway.example"
	req.Header.Set("Mcp-Session-Id", "s1")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "gateway.example /mcp/a%2Fb?x=1 s1", string(b))
}

func TestConnectionsAreNewOrKept(t *testing.T) {
	for _, keep := range []bool{false, true} {
		peers := map[string]bool{}
		_, url := front(t, Options{KeepAlive: keep}, backend(t, func(_ http.ResponseWriter, req *http.Request) {
			peers[req.RemoteAddr] = true // one request at a time
		}))
		for range 5 {
			get(t, url)
		}
		if keep {
			require.Len(t, peers, 1)
		} else {
			require.Len(t, peers, 5)
		}
	}
}

func TestADeadBackendIsPassedOver(t *testing.T) {
	_, url := front(t, Options{}, backend(t, named("a")), dead(t), backend(t, named("c")))
	var order strings.Builder
	for range 6 {
		status, body := do(t, http.MethodPost, url, strings.NewReader("!"))
		require.Equal(t, http.StatusOK, status)
		order.WriteString(body)
	}
	// The one after the dead one is not served twice: its turn was used.
	require.Equal(t, "a!c!a!c!a!c!", order.String())
	require.Equal(t, "a", get(t, url))
	require.Equal(t, "c", get(t, url), "a GET has no body to repeat")
}

// A replica that shuts down breaks connections it has not read from yet. A POST
// may have been served, a GET is asked of the next one.
func TestABackendThatBreaksIsPassedOverByGETsOnly(t *testing.T) {
	breaks := backend(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, url := front(t, Options{}, breaks, backend(t, named("b")))
	status, body := do(t, http.MethodGet, url, nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "b", body)
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		status, _ = do(t, method, url, nil)
		require.Equal(t, http.StatusBadGateway, status)
		status, _ = do(t, method, url, nil)
		require.Equal(t, http.StatusOK, status)
	}
}

func TestBodiesOverTheLimitAreStreamedOnce(t *testing.T) {
	const limit = 1000
	_, url := front(t, Options{MaxBuffered: limit}, backend(t, named("")), dead(t))
	for _, tc := range []struct {
		size   int
		status []int // of two requests: at the live backend, at the dead one
	}{
		{limit, []int{200, 200}},
		{limit + 1, []int{200, 502}},
		{50 * limit, []int{200, 502}},
	} {
		for _, chunked := range []bool{false, true} {
			p, url := front(t, Options{MaxBuffered: limit}, backend(t, named("")), dead(t))
			sent := strings.Repeat("x", tc.size)
			for _, want := range tc.status {
				var body io.Reader = strings.NewReader(sent)
				if chunked {
					body = io.MultiReader(body) // hides the length
				}
				status, got := do(t, http.MethodPost, url, body)
				require.Equal(t, want, status, "%d bytes, chunked %v", tc.size, chunked)
				if want == http.StatusOK {
					require.Equal(t, sent, got)
				}
			}
			p.Close()
		}
	}
	status, _ := do(t, http.MethodPost, url, nil)
	require.Equal(t, http.StatusOK, status)
}

func TestNobodyThere(t *testing.T) {
	_, url := front(t, Options{}, dead(t), dead(t))
	status, _ := do(t, http.MethodPost, url, strings.NewReader("x"))
	require.Equal(t, http.StatusBadGateway, status)
	_, url = front(t, Options{})
	status, _ = do(t, http.MethodGet, url, nil)
	require.Equal(t, http.StatusServiceUnavailable, status)
}

func TestBackendsComeAndGo(t *testing.T) {
	a, b, c := backend(t, named("a")), backend(t, named("b")), backend(t, named("c"))
	p, url := front(t, Options{}, a, b, c)
	require.Equal(t, "a", get(t, url))
	require.Equal(t, "b", get(t, url))
	p.Remove(a) // before the turn: it stays with c
	require.Equal(t, "c", get(t, url))
	require.Equal(t, "b", get(t, url))
	p.Add(a)
	p.Add(a)
	require.Equal(t, []string{b, c, a}, p.Backends())
	require.Equal(t, "c", get(t, url))
	require.Equal(t, "a", get(t, url))
	p.Remove(c)
	p.Remove(c)
	require.Equal(t, "b", get(t, url))
	require.Equal(t, "a", get(t, url))
}

func TestStreamsAreFlushedAndEndWithTheirClient(t *testing.T) {
	next, ended := make(chan struct{}), make(chan struct{})
	_, url := front(t, Options{}, backend(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-next
		fmt.Fprint(w, "data: 2\n\n")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	require.True(t, lines.Scan())
	require.Equal(t, "data: 1", lines.Text(), "it is here before the second is written")
	close(next)
	require.True(t, lines.Scan(), "the blank line")
	require.True(t, lines.Scan())
	require.Equal(t, "data: 2", lines.Text())
	cancel()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the backend does not know that its client has gone")
	}
}

func TestABrokenAnswerIsNotACompleteOne(t *testing.T) {
	_, url := front(t, Options{}, backend(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestAPOSTOutlivesItsClientOnKeptConnectionsOnly(t *testing.T) {
	for _, keep := range []bool{false, true} {
		began, ended := make(chan struct{}), make(chan time.Time, 1)
		_, url := front(t, Options{KeepAlive: keep}, backend(t, func(_ http.ResponseWriter, req *http.Request) {
			_, _ = io.ReadAll(req.Body)
			close(began)
			<-req.Context().Done()
			ended <- time.Now()
		}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-began
			cancel()
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
		require.NoError(t, err)
		_, err = client.Do(req)
		require.ErrorIs(t, err, context.Canceled)
		left := time.Now()
		select {
		case at := <-ended:
			if keep {
				require.Greater(t, at.Sub(left), linger/2)
			} else {
				require.Less(t, at.Sub(left), linger/2)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the backend never learns that its client has gone")
		}
	}
}

func TestASettledPOSTIsNotCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	later, settled := outlive(ctx)
	settled()
	settled()
	cancel()
	select {
	case <-later.Done():
		t.Fatal("cancelled although its answer was complete")
	case <-time.After(linger + 200*time.Millisecond):
	}
}
