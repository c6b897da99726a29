package sessionshare

import (
	"net/http"

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
