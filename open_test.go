package sessionshare

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever the SDK takes for an initialize is a session that other replicas know,
// or is refused.
func TestOpenIsRecordedOrRefused(t *testing.T) {
	old := header{"Mcp-Protocol-Version", "2025-03-26"}
	for name, tc := range map[string]struct {
		body   string
		h      header
		status int
	}{
		"as it should be":      {initBody, nil, 200},
		"space around":         {" \n" + initBody + " \n", nil, 200},
		"method escaped":       {`{"jsonrpc":"2.0","id":1,"method":"initi\u0061lize","params":` + initParams + `}`, nil, 200},
		"keys escaped":         {`{"jsonrpc":"2.0","id":1,"m\u0065thod":"initialize","p\u0061rams":` + initParams + `}`, nil, 200},
		"params first":         {`{"params":` + initParams + `,"jsonrpc":"2.0","id":1,"method":"initialize"}`, nil, 200},
		"last params win":      {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"x"},"params":` + initParams + `}`, nil, 200},
		"last method wins":     {`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + initParams + `,"method":"initialize"}`, nil, 200},
		"other case first":     {`{"jsonrpc":"2.0","id":1,"method":"initialize","Params":{"a":1},"params":` + initParams + `,"PARAMS":{"b":1}}`, nil, 200},
		"in a batch":           {`[` + initBody + `]`, old, 400},
		"in a batch with more": {`[` + initBody + `,` + greetBody + `]`, old, 400},
		"trailing bytes":       {initBody + ` x`, nil, 400},
		"trailing message":     {initBody + greetBody, nil, 400},
		"trailing NUL":         {initBody + "\x00", nil, 400},
		"too deep":             {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}}`, nil, 400},
		"no params":            {`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, nil, 400},
		"null params":          {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":null}`, nil, 200},
		"a notification":       {`{"jsonrpc":"2.0","method":"initialize","params":` + initParams + `}`, nil, 400},
		"not UTF-8":            {strings.Replace(initBody, `"name":"c"`, "\"name\":\"c\xff\"", 1), nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2)
				a, b := c.nodes[0], c.nodes[1]
				w := a.post("", tc.body, tc.h)
				if tc.status != 0 {
					require.Equal(t, tc.status, w.Code, w.Body.String())
				}
				sid := w.Header().Get("Mcp-Session-Id")
				if w.Code == 200 && sid != "" && strings.Contains(w.Body.String(), `"result"`) {
					require.Len(t, c.backend.keys("session."), 1)
					require.Equal(t, 200, b.list(sid), "another replica knows it")
					require.Equal(t, 200, a.list(sid))
					return
				}
				assert.Empty(t, c.backend.dump(), "no record without a session")
				assert.Zero(t, a.Stats().Hosted, "no session without a record")
				if sid != "" {
					assert.Equal(t, 404, a.list(sid))
				}
			})
		})
	}
}

// The record keeps the initialize parameters as the client sent them.
func TestRecordKeepsParametersByteForByte(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const params = `{ "protocolVersion" : "2025-11-25","unknown":{"a":[1,2.50,1e3],"a":"\u00e9\/<>&"},  "capabilities":{"elicitation":{},"new":{"x":true}},"clientInfo":{"name":"c","version":"1"},"clientInfo":{"name":"d","version":"2","extra":null} }`
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		w := a.post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":`+params+`}`)
		require.Equal(t, 200, w.Code)
		sid := w.Header().Get("Mcp-Session-Id")
		for _, e := range c.backend.dump() {
			assert.Contains(t, string(e.value), params)
		}
		first, second := a.post(sid, toolFixed("echo")), b.post(sid, toolFixed("echo"))
		assert.Equal(t, first.Body.String(), second.Body.String())
		assert.Contains(t, first.Body.String(), `\"name\":\"d\"`)
	})
}

func toolFixed(name string) string {
	return `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"` + name + `","arguments":{}}}`
}

// A broken client that begins anew with a dead ID gets a new session; one that
// does so on a live session of its own is told by the SDK.
func TestInitializeWithAnID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t, user("u"))
		for name, dead := range map[string]string{"unknown": "dead-session-id-0000", "malformed": strings.Repeat("x", 300), "not visible": "a b"} {
			for _, n := range c.nodes {
				w := n.post(dead, initBody, user("u"))
				require.Equal(t, 200, w.Code, name)
				fresh := w.Header().Get("Mcp-Session-Id")
				require.NotEmpty(t, fresh)
				require.NotEqual(t, dead, fresh)
				require.Equal(t, 200, b.list(fresh, user("u")))
			}
		}
		w := a.post(sid, initBody, user("v"))
		require.Equal(t, 200, w.Code, "a foreign ID is like an unknown one")
		require.NotEqual(t, sid, w.Header().Get("Mcp-Session-Id"))
		for _, n := range c.nodes {
			w := n.post(sid, initBody, user("u"))
			assert.Contains(t, w.Body.String(), `"error"`)
			assert.NotContains(t, w.Body.String(), `"result"`)
		}
		assert.Equal(t, 200, a.list(sid, user("u")))
	})
}

// A malformed ID is unknown, and costs the store nothing; two IDs are refused.
func TestMalformedSessionIDs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		for _, id := range []string{strings.Repeat("x", 257), "a b", "a\tb", "\x7f", "é", "a\x00"} {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				assert.Equal(t, 404, a.do(method, id, pingBody).Code, "%q", id)
			}
		}
		assert.Zero(t, a.view.count(), "no call of the store")
		assert.Equal(t, 404, a.list(strings.Repeat("x", 256)))
		assert.NotZero(t, a.view.count())
		for _, method := range []string{"POST", "GET", "DELETE"} {
			req := newRequest(method, "one-session-id-00000", pingBody)
			req.Header.Add("Mcp-Session-Id", "two-session-id-00000")
			w := httptest.NewRecorder()
			a.ServeHTTP(w, req)
			assert.Equal(t, 400, w.Code)
			assert.Contains(t, w.Header().Get("Content-Type"), "text/plain")
		}
	})
}

// Methods that no MCP client sends resume nothing.
func TestOtherMethodsResumeNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		for _, method := range []string{"HEAD", "OPTIONS", "PUT", "PATCH", "get"} {
			assert.Equal(t, 405, b.do(method, sid, "").Code, method)
		}
		assert.Zero(t, b.built.Load())
		assert.Zero(t, b.view.count())
	})
}

// Bounds on what a session may bring along.
func TestOpenBounds(t *testing.T) {
	big := func(n int) string {
		return strings.Replace(initBody, `"name":"c"`, `"name":"`+strings.Repeat("c", n)+`"`, 1)
	}
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		w := a.post("", big(maxParams-len(initParams)+1))
		require.Equal(t, 200, w.Code)
		require.Equal(t, 200, b.list(w.Header().Get("Mcp-Session-Id")), "parameters of just 128 KiB are shared")
		w = a.post("", big(maxParams-len(initParams)+2))
		assert.Equal(t, 413, w.Code, "one byte more")
		assert.Contains(t, w.Header().Get("Content-Type"), "text/plain")
		w = a.post("", initBody, header{"X-Scope", strings.Repeat("s", maxScope)})
		require.Equal(t, 200, w.Code)
		require.Equal(t, 200, b.list(w.Header().Get("Mcp-Session-Id")))
		assert.Equal(t, 400, a.post("", initBody, header{"X-Scope", strings.Repeat("s", maxScope+1)}).Code)
		w = a.post("", big(maxParams-len(initParams)), header{"X-Scope", strings.Repeat("s", maxScope)})
		require.Equal(t, 200, w.Code, "all bounds at once fit a record")
		require.Equal(t, 200, b.list(w.Header().Get("Mcp-Session-Id")))
		assert.Equal(t, 413, a.post("", strings.Repeat(" ", mcp.DefaultMaxRequestBodyBytes)+initBody).Code)
		assert.Equal(t, 413, a.post(w.Header().Get("Mcp-Session-Id"), strings.Repeat(" ", mcp.DefaultMaxRequestBodyBytes)+pingBody).Code)
		assert.Equal(t, 400, a.post("", initBody, user("not\xffUTF-8")).Code, "a principal that JSON cannot hold")
	})
}

// The factory sees only what is recorded, at open and at every resume.
func TestFactorySeesOnlyWhatIsRecorded(t *testing.T) {
	type sight struct {
		method, path, query, host string
		header                    http.Header
		body                      bool
		principal, scope, digest  string
		value                     any
	}
	type key struct{}
	virtual(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []sight
		resumed := map[bool]int{}
		c := newCluster(t, 3, func(cfg *nodeConfig) {
			cfg.opts.OpenHeaders = []string{"x-tenant", "X-Missing"}
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				s, ok := SessionFromContext(req.Context())
				assert.True(t, ok)
				mu.Lock()
				defer mu.Unlock()
				resumed[s.Resumed()]++
				b := s.Binding()
				seen = append(seen, sight{req.Method, req.URL.Path, req.URL.RawQuery, req.Host, req.Header.Clone(),
					req.Body != http.NoBody, b.Principal, string(b.Scope), s.Digest(), req.Context().Value(key{})})
				req.Header.Set("X-Tenant", "changed by the factory")
				b.Scope[0] = '!'
				return before(req, opts)
			}
		})
		hs := header{"X-User", "u", "X-Scope", "s", "X-Tenant", "t", "Authorization", "secret"}
		sid := c.nodes[0].open(t, hs)
		for i, n := range c.nodes {
			req := newRequest("POST", sid, toolBody("echos"), header{"X-User", "u", "X-Scope", "other", "X-Tenant", "other"})
			req.URL.RawQuery = "q=1"
			req = req.WithContext(context.WithValue(req.Context(), key{}, "value"))
			w := httptest.NewRecorder()
			n.ServeHTTP(w, req)
			require.Equal(t, 200, w.Code, i)
			require.Contains(t, w.Body.String(), sid)
		}
		require.Len(t, seen, 3)
		assert.Equal(t, map[bool]int{false: 1, true: 2}, resumed)
		assert.Equal(t, http.Header{"X-Tenant": {"t"}}, seen[0].header)
		assert.Equal(t, "/mcp", seen[0].path)
		assert.Equal(t, digestOf(sid).short(), seen[0].digest)
		assert.Empty(t, seen[0].query)
		for _, s := range seen[1:] {
			assert.Equal(t, "value", s.value, "the context's values are the trigger's")
			s.value = nil
			assert.Equal(t, seen[0], s, "at resume as at open")
		}
	})
}

// A static server: 100 opens and resumes at once never mix up IDs.
func TestStaticServerNeverMixesUpIDs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		static := func(cfg *nodeConfig) {
			var once sync.Once
			var server *mcp.Server
			before := cfg.factory
			cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
				once.Do(func() {
					slow := *opts // others come between the SDK's getServer and this
					slow.GetSessionID = func() string { runtime.Gosched(); return opts.GetSessionID() }
					server = before(&http.Request{}, &slow)
				})
				return server
			}
		}
		c := newCluster(t, 2, static)
		a, b := c.nodes[0], c.nodes[1]
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				name := "client-" + string(rune('A'+i%26)) + string(rune('A'+i/26))
				w := a.post("", strings.Replace(initBody, `"name":"c"`, `"name":"`+name+`"`, 1))
				sid := w.Header().Get("Mcp-Session-Id")
				for _, n := range []*node{b, a} {
					body := n.post(sid, toolBody("echo")).Body.String()
					assert.Contains(t, body, sid)
					assert.Contains(t, body, name)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 100, a.Stats().Hosted)
		assert.Equal(t, 100, b.Stats().Hosted)
	})
}

// A server that was not built for this Replica fails loudly, and leaves nothing.
func TestForeignServers(t *testing.T) {
	for name, id := range map[string]func() string{
		"no GetSessionID": nil,
		"its own IDs":     func() string { return "a-session-id-of-its-own" },
		"no IDs":          func() string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var foreign bool
				c := newCluster(t, 2, func(cfg *nodeConfig) {
					before := cfg.factory
					cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
						if foreign {
							return before(req, &mcp.ServerOptions{GetSessionID: id})
						}
						return before(req, opts)
					}
				})
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				foreign = true
				w := a.post("", initBody)
				assert.Equal(t, 500, w.Code)
				assert.Empty(t, w.Header().Get("Mcp-Session-Id"))
				assert.Contains(t, w.Body.String(), "GetSessionID")
				assert.Contains(t, a.log.String(), "GetSessionID", "the log says what to do")
				assert.Equal(t, 500, b.list(sid), "a resume fails loudly too")
				assert.Equal(t, 1, a.Stats().Hosted)
				foreign = false
				assert.Equal(t, 200, b.list(sid))
			})
		})
	}
}

// A server with this Replica's GetSessionID that something else serves as well
// cannot get at the IDs of sessions for long: such an open is tried once more.
func TestSomebodyElseTakesAnID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var thefts int
		c := newCluster(t, 1)
		a := c.nodes[0]
		a.ids.fresh = func() string { return "fresh-" + DefaultKeyPrefix + "0123456789" }
		h := a.Replica.Handler(func(req *http.Request) *mcp.Server {
			return a.newServer(req, &mcp.ServerOptions{GetSessionID: func() string {
				if thefts > 0 {
					thefts--
					_ = a.GetSessionID() // as another handler would, at that moment
				}
				return a.GetSessionID()
			}})
		}, nil)
		thefts = 1
		w := httptest.NewRecorder()
		h.ServeHTTP(w, newRequest("POST", "", initBody))
		assert.Equal(t, 200, w.Code)
		thefts = 2
		w = httptest.NewRecorder()
		h.ServeHTTP(w, newRequest("POST", "", initBody))
		assert.Equal(t, 503, w.Code)
		assert.Equal(t, 1, a.Stats().Hosted)
	})
}

// GetSessionID with nothing armed makes an ID of the host's own kind.
func TestGetSessionIDUnarmed(t *testing.T) {
	r, err := New(Options{NewSessionID: func() string { return "0123456789abcdef" }})
	require.NoError(t, err)
	assert.Equal(t, "0123456789abcdef", r.GetSessionID())
}

// NewSessionID is checked each time.
func TestBadNewSessionID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		id := "0123456789abcdef"
		c := newCluster(t, 1, func(cfg *nodeConfig) { cfg.opts.NewSessionID = func() string { return id } })
		a := c.nodes[0]
		for _, bad := range []string{"", "short", strings.Repeat("x", 257), "0123456789 abcdef", "0123456789abcdeé"} {
			id = bad
			assert.Equal(t, 500, a.post("", initBody).Code, "%q", bad)
		}
		assert.Zero(t, a.Stats().Hosted)
		id = "0123456789abcdef"
		assert.Equal(t, id, a.open(t))
	})
}

// The default principal is the token's user; a token without user is refused.
func TestDefaultPrincipal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			cfg.opts.Principal = nil
			cfg.opts.Scope = func(_ *http.Request, b Binding) ([]byte, error) { return []byte("-" + b.Principal), nil }
		})
		as := func(n *node, token, sid, body string) *httptest.ResponseRecorder {
			verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
				return &auth.TokenInfo{UserID: strings.Trim(token, "0123456789"), Expiration: time.Now().Add(time.Hour)}, nil
			}
			w := httptest.NewRecorder()
			auth.RequireBearerToken(verify, nil)(n).ServeHTTP(w, newRequest("POST", sid, body, header{"Authorization", "Bearer " + token}))
			return w
		}
		a, b := c.nodes[0], c.nodes[1]
		w := as(a, "ann1", "", initBody)
		require.Equal(t, 200, w.Code)
		sid := w.Header().Get("Mcp-Session-Id")
		for _, n := range c.nodes {
			w = as(n, "ann2", sid, toolBody("echo-ann"))
			assert.Equal(t, 200, w.Code)
			assert.Contains(t, w.Body.String(), sid)
			assert.Equal(t, 404, as(n, "bob", sid, pingBody).Code)
			assert.Equal(t, 404, n.list(sid), "no token")
		}
		w = as(b, "123", "", initBody)
		assert.Equal(t, 500, w.Code)
		assert.Contains(t, w.Body.String(), "UserID")
		assert.Equal(t, 500, as(b, "123", sid, pingBody).Code)
	})
}

// Scope answers with errors like the other callbacks.
func TestScopeInDoubt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var fail error
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			cfg.opts.Scope = func(*http.Request, Binding) ([]byte, error) { return nil, fail }
		})
		a := c.nodes[0]
		for want, err := range map[int]error{418: &StatusError{Status: 418}, 404: ErrGone, 503: errors.New("not loaded")} {
			fail = err
			assert.Equal(t, want, a.post("", initBody).Code)
		}
		assert.Zero(t, a.built.Load())
		assert.Empty(t, c.backend.dump())
	})
}

// The default endpoint is the path as the client sent it.
func TestDefaultEndpoint(t *testing.T) {
	for target, want := range map[string]string{"/mcp": "/mcp", "/mcp/": "/mcp", "/": "/", "/a/mcp?x=1": "/a/mcp", "/a%2fb": "/a/b"} {
		req := httptest.NewRequest("POST", target, nil)
		got, err := pathEndpoint(req)
		require.NoError(t, err)
		assert.Equal(t, Endpoint{Name: want}, got, target)
	}
	var got Endpoint
	http.StripPrefix("/a", http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got, _ = pathEndpoint(req) })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/a/mcp/", nil))
	assert.Equal(t, Endpoint{Name: "/a/mcp"}, got)
}

// A stateless handler is the SDK's own.
func TestStatelessIsPassedThrough(t *testing.T) {
	r, err := New(Options{})
	require.NoError(t, err)
	h := r.Handler(func(*http.Request) *mcp.Server { return mcp.NewServer(&mcp.Implementation{Name: "x"}, nil) },
		&mcp.StreamableHTTPOptions{Stateless: true})
	assert.IsType(t, (*mcp.StreamableHTTPHandler)(nil), h)
}

// JSON-RPC bodies of 404 and 503, in the exact form that clients look for.
func TestBodiesOfAnswers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		check := func(w *httptest.ResponseRecorder, status, code int) {
			t.Helper()
			assert.Equal(t, status, w.Code)
			assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
			var got struct {
				Version string           `json:"jsonrpc"`
				ID      *json.RawMessage `json:"id"`
				Error   struct {
					Code    int
					Message string
				}
			}
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			assert.Contains(t, w.Body.String(), `"id":null`)
			assert.Equal(t, "2.0", got.Version)
			assert.Equal(t, code, got.Error.Code)
			if status == 404 {
				assert.Equal(t, "Session not found", got.Error.Message)
			}
		}
		w := a.post("no-such-session-0000", pingBody)
		check(w, 404, -32001)
		assert.Empty(t, w.Header().Get("Retry-After"))
		a.view.down()
		w = a.post("no-such-session-0000", pingBody)
		check(w, 503, -32000)
		assert.Equal(t, "1", w.Header().Get("Retry-After"))
	})
}
