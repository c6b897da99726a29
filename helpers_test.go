package sessionshare

import (
	"net/http"
	"net/http/httptest"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// spyFactory shows f the session of every copy that is made.
func spyFactory(cfg *nodeConfig, f func(*Session)) {
	before := cfg.factory
	cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
		if s, ok := SessionFromContext(req.Context()); ok {
			f(s)
		}
		return before(req, opts)
	}
}

const pingBody = `{"jsonrpc":"2.0","id":77,"method":"ping"}`

// An exchanged is an answer as it went over the wire.
type exchanged struct {
	status int
	header http.Header
	body   string
}

// exchange sends req to n. It is for requests that end by themselves.
func exchange(n *node, req *http.Request) exchanged {
	w := httptest.NewRecorder()
	n.ServeHTTP(w, req)
	return exchanged{w.Code, w.Header(), blockPattern.ReplaceAllString(w.Body.String(), "id: ~block\n\n")}
}

// blockPattern matches the first block of a stream, whose id is new each time.
var blockPattern = regexp.MustCompile(`id: ~[^\n]+\n\n`)
