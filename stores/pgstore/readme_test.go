//go:build unix

package pgstore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
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
// figures of the README: the rows are repeated, and the table is measured.
func TestReadmeSizes(t *testing.T) {
	server := storeservers.Postgres(t)
	pool := newPool(t, server.URL, nil)
	s := newStore(t, pool, nil)
	size := func(what string) (each float64) {
		const times = 20000
		var rows int
		sql := "CREATE TABLE copies WITH (fillfactor = 70) AS SELECT lpad(i::text, 85, '0') COLLATE \"C\" AS k, v, expires_at FROM sessionshare, generate_series(1, $1) i"
		if _, err := pool.Exec(t.Context(), strings.Replace(sql, "$1", strconv.Itoa(times), 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), "CREATE INDEX ON copies (k)"); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(t.Context(), "SELECT count(*), pg_total_relation_size('copies')::float8 / $1 FROM sessionshare", times).Scan(&rows, &each); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), "DROP TABLE copies"); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d row(s), %.0f bytes with their index", what, rows, each)
		return each
	}
	end := openSession(t, s)
	open := size("an open session")
	end()
	if closed := size("a closed session"); open < 300 || open > 4000 || closed < 100 || closed > 1000 {
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
