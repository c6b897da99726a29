//go:build unix

package redisstore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/storeservers"
)

// TestReadmeProgram: the program of the README is the one that is compiled.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("example/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(program)+"```\n") {
		t.Error("README.md does not hold example/main.go as it is")
	}
}

// TestReadmeSizes opens a session through the library, closes it, and logs the
// figures of the README.
func TestReadmeSizes(t *testing.T) {
	server := storeservers.Redis(t)
	client := newClient(t, server.URL)
	s, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	bytesNow := func() (sum int64) {
		keys, err := client.Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			n, err := client.MemoryUsage(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		return sum
	}
	end := openSession(t, s)
	open := bytesNow()
	end()
	closed := bytesNow()
	t.Logf("an open session takes %d bytes, a closed one %d", open, closed)
	if open < 300 || open > 4000 || closed < 50 || closed > 500 {
		t.Error("the README says something else")
	}
}

// openSession opens a session with the SDK's client on a replica over s, and
// returns what deletes it.
func openSession(t *testing.T, s sessionshare.SharedStore) (end func()) {
	t.Helper()
	replica, err := sessionshare.New(sessionshare.Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, &mcp.ServerOptions{GetSessionID: replica.GetSessionID})
	web := httptest.NewServer(replica.Handler(func(*http.Request) *mcp.Server { return server }, nil))
	client := mcp.NewClient(&mcp.Implementation{Name: "an-ordinary-client", Version: "1.2.3"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: web.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // the client opens its stream
	return func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		_ = replica.Shutdown(context.Background())
		web.Close()
	}
}
