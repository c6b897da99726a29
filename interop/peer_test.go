package interop

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

// peerHeartbeat leaves time for a machine that is busy: what should be noticed at
// the next heartbeat has two.
const peerHeartbeat = 2 * time.Second

// TestVanishedPeer shows that who listened, and is gone, counts as a listener for
// no longer than two heartbeats: the stream is over, and the copy is evicted.
func TestVanishedPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for real heartbeats")
	}
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, v := range []struct {
		name      string
		heartbeat time.Duration
		vanish    func(*single, *net.TCPConn)
		noticed   bool
	}{
		{"its process dies", peerHeartbeat, die, true}, // net/http notices
		{"it knows of no connection", peerHeartbeat, forget, true},
		{"it knows of no connection, and nothing is sent", -1, forget, false},
		{"it takes nothing any more", peerHeartbeat, overfill, true},
	} {
		all.Go(func() {
			t.Run(v.name, func(t *testing.T) {
				// Without a listener a copy does not get old.
				s := startSingle(t, sessionshare.Options{StreamHeartbeat: v.heartbeat, EvictAfter: peerHeartbeat})
				conn := s.listen(t)
				_ = conn.SetReadDeadline(time.Now().Add(2*peerHeartbeat + peerHeartbeat/2))
				if _, err := io.Copy(io.Discard, conn); !errors.Is(err, os.ErrDeadlineExceeded) || s.replica.Stats().Evicted > 0 {
					t.Fatalf("the stream of a peer that is there has ended: %v", err)
				}
				_ = conn.SetReadDeadline(time.Time{})
				gone := time.Now()
				v.vanish(s, conn)
				noticed := false
				select {
				case <-s.left:
					noticed = true
					t.Logf("noticed after %v", time.Since(gone).Round(time.Millisecond))
				case <-time.After(2 * peerHeartbeat):
				}
				if noticed != v.noticed {
					t.Fatalf("noticed in two heartbeats: %v, want %v", noticed, v.noticed)
				}
				evicted := func() bool { return s.replica.Stats().Evicted == 1 }
				if noticed && !Eventually(t.Context(), 10*time.Second, evicted) {
					t.Error("it counts as a listener all the same")
				}
				if !noticed && evicted() {
					t.Error("the copy went under an open stream")
				}
			})
		})
	}
}

// die ends a connection as the kernel does for a process that was killed.
func die(_ *single, conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// forget leaves without a word, as a machine does that loses power, and resets the
// connection when something comes on it, as the kernel does once it is up again. One
// that stays away tells nobody: only TCP gives up on it, in its own time.
func forget(s *single, conn *net.TCPConn) {
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		die(s, conn)
	}()
}

// overfill sends more than the buffers of a connection hold.
func overfill(s *single, _ *net.TCPConn) {
	for session := range s.server.Sessions() {
		go func() {
			_ = session.NotifyProgress(context.Background(), &mcp.ProgressNotificationParams{
				ProgressToken: "t", Message: strings.Repeat("x", 256<<10),
			})
		}()
	}
}

// listen opens a session and its stream on one connection, which it returns.
func (s *single) listen(t *testing.T) *net.TCPConn {
	conn, err := net.Dial("tcp", s.url.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	in, session := bufio.NewReader(conn), ""
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"peer","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"", // the GET
	} {
		method := http.MethodPost
		if body == "" {
			method = http.MethodGet
		}
		req, err := http.NewRequest(method, s.url.String(), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Mcp-Session-Id", session)
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, req)
		if err != nil || res.StatusCode >= 300 {
			t.Fatal(res, err)
		}
		if body != "" {
			session = cmp.Or(session, res.Header.Get("Mcp-Session-Id"))
			_, _ = io.Copy(io.Discard, res.Body)
		}
	}
	return conn.(*net.TCPConn)
}
