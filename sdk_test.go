package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of this file state what the library assumes of the SDK, version
// 1.8.0, one assumption each. One that fails with a new version says which part of
// the library no longer stands.

// sdkServer is a bare SDK server and its handler.
func sdkServer(id string, opts *mcp.StreamableHTTPOptions, middleware ...mcp.Middleware) (*mcp.Server, http.Handler) {
	s := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, &mcp.ServerOptions{GetSessionID: func() string { return id }})
	s.AddReceivingMiddleware(middleware...)
	return s, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, opts)
}

func serve(h http.Handler, req *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func closeSessions(s *mcp.Server) {
	for ss := range s.Sessions() {
		_ = ss.Close()
	}
}

const sdkID = "a-session-id-of-the-sdk"

// readSpy notes when a body is read.
type readSpy struct {
	io.Reader
	note func(string)
}

func (r readSpy) Read(b []byte) (int, error) { r.note("read"); return r.Reader.Read(b) }
func (readSpy) Close() error                 { return nil }

// resume.go arms the session ID in getServer: the SDK calls getServer and then
// GetSessionID, on one goroutine, before it reads the body.
func TestSDKTakesTheIDAfterGetServerBeforeTheBody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var order []string
		note := func(s string) {
			if len(order) == 0 || order[len(order)-1] != s {
				order = append(order, s)
			}
		}
		goroutines := map[string]bool{}
		s := mcp.NewServer(&mcp.Implementation{Name: "x"}, &mcp.ServerOptions{GetSessionID: func() string {
			note("GetSessionID")
			goroutines[goroutineID()] = true
			return sdkID
		}})
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server {
			note("getServer")
			goroutines[goroutineID()] = true
			return s
		}, nil)
		req := newRequest("POST", "", "")
		req.Body = readSpy{strings.NewReader(initBody), note}
		w := serve(h, req)
		assert.Equal(t, 200, w.Code)
		assert.Equal(t, sdkID, w.Header().Get("Mcp-Session-Id"))
		assert.Equal(t, []string{"getServer", "GetSessionID", "read"}, order)
		assert.Len(t, goroutines, 1)
		closeSessions(s)
	})
}

func goroutineID() string {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	id, _, _ := bytes.Cut(b, []byte(" ["))
	return string(id)
}

// middleware.go finds the POST of a handler by RequestExtra.Header, which is the
// request's own header map, not a copy.
func TestSDKShowsHandlersTheRequestsOwnHeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var seen []uintptr
		s, h := sdkServer(sdkID, nil, func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				seen = append(seen, headerIdentity(req.GetExtra().Header))
				return next(ctx, method, req)
			}
		})
		var want []uintptr
		for _, body := range []string{initBody, greetBody, callBody("tools/list", "{}")} {
			sid := sdkID
			if body == initBody {
				sid = ""
			}
			req := newRequest("POST", sid, body)
			want = append(want, headerIdentity(req.Header))
			serve(h, req)
			synctest.Wait()
		}
		assert.Equal(t, want, seen)
		closeSessions(s)
	})
}

// copy.go takes what it knows of a copy from the context of the request that
// created the session: handlers see its values, without its cancellation, whatever
// request called them.
func TestSDKHandlersSeeTheCreatingContext(t *testing.T) {
	type key struct{}
	virtual(t, func(t *testing.T) {
		var seen []any
		s, h := sdkServer(sdkID, nil, func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				seen = append(seen, ctx.Value(key{}), ctx.Err())
				return next(ctx, method, req)
			}
		})
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "creator"))
		serve(h, newRequest("POST", "", initBody).WithContext(ctx))
		cancel()
		serve(h, newRequest("POST", sdkID, pingBody).WithContext(context.WithValue(context.Background(), key{}, "other")))
		assert.Equal(t, []any{"creator", nil, "creator", nil}, seen)
		closeSessions(s)
	})
}

// admit.go and post.go tell the SDK's 404 from others: text/plain, before the body
// is read, also for GET and DELETE.
func TestSDKNotFoundIsPlainTextBeforeTheBodyIsRead(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, h := sdkServer(sdkID, nil)
		for _, method := range []string{"POST", "GET", "DELETE"} {
			var read bool
			req := newRequest(method, "unknown", "")
			req.Body = readSpy{strings.NewReader(pingBody), func(string) { read = true }}
			w := serve(h, req)
			assert.Equal(t, 404, w.Code)
			assert.True(t, strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain"))
			assert.False(t, read)
		}
	})
}

// A session that the host has closed is 404 from then on.
func TestSDKClosedSessionIsNotFound(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, h := sdkServer(sdkID, nil)
		serve(h, newRequest("POST", "", initBody))
		closeSessions(s)
		for _, method := range []string{"POST", "GET", "DELETE"} {
			assert.Equal(t, 404, serve(h, newRequest(method, sdkID, pingBody)).Code)
		}
	})
}

// countingWriter counts the writes of an answer.
type countingWriter struct {
	*httptest.ResponseRecorder
	writes []string
}

func (w *countingWriter) Write(b []byte) (int, error) {
	w.writes = append(w.writes, string(b))
	return w.ResponseRecorder.Write(b)
}

// post.go counts answers: the SDK writes each SSE event, and a JSON body, in one
// Write, and a response begins with its id, before result or error.
func TestSDKWritesOneEventAtATimeAndTheIDFirst(t *testing.T) {
	for _, json := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			s, h := sdkServer(sdkID, &mcp.StreamableHTTPOptions{JSONResponse: json})
			s.AddTool(&mcp.Tool{Name: "log", InputSchema: map[string]any{"type": "object"}},
				func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					for range 3 {
						_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "t"})
					}
					return text("done\n\ndata: {}"), nil
				})
			serve(h, newRequest("POST", "", initBody))
			w := &countingWriter{ResponseRecorder: httptest.NewRecorder()}
			h.ServeHTTP(w, newRequest("POST", sdkID, toolFixed("log")))
			last := w.writes[len(w.writes)-1]
			if json {
				require.Len(t, w.writes, 1)
				assert.True(t, strings.HasPrefix(last, `{"jsonrpc":"2.0","id":5,"result":`), last)
			} else {
				require.Len(t, w.writes, 4)
				for _, e := range w.writes {
					assert.True(t, strings.HasPrefix(e, "event: message\ndata: {"))
					assert.True(t, strings.HasSuffix(e, "}\n\n"))
				}
				assert.Contains(t, last, `data: {"jsonrpc":"2.0","id":5,"result":`)
			}
			closeSessions(s)
		})
	}
}

// middleware.go answers keep-alives with an empty result of the SDK's own type.
func TestSDKEmptyResultCanBeHad(t *testing.T) {
	assert.NotNil(t, emptyResult())
}

// middleware.go tells the SDK's keep-alive ping by its context, which carries no
// value of the session's; a tool's ping does.
func TestSDKKeepAliveHasABareContext(t *testing.T) {
	type key struct{}
	virtual(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []any
		s := mcp.NewServer(&mcp.Implementation{Name: "x"}, &mcp.ServerOptions{
			KeepAlive: time.Second, GetSessionID: func() string { return sdkID }})
		s.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "ping" {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, ctx.Value(key{}))
					return emptyResult(), nil
				}
				return next(ctx, method, req)
			}
		})
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
		serve(h, newRequest("POST", "", initBody).WithContext(context.WithValue(context.Background(), key{}, "session")))
		time.Sleep(1500 * time.Millisecond)
		mu.Lock()
		assert.Equal(t, []any{nil}, seen)
		mu.Unlock()
		assert.Equal(t, 200, serve(h, newRequest("POST", sdkID, pingBody)).Code, "an answered ping keeps the session")
		closeSessions(s)
	})
}

// open.go replays initialize alone: the SDK serves calls of a session that never
// got notifications/initialized.
func TestSDKServesCallsBeforeInitialized(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, h := sdkServer(sdkID, nil)
		serve(h, newRequest("POST", "", initBody))
		w := serve(h, newRequest("POST", sdkID, callBody("tools/list", "{}")))
		assert.Equal(t, 200, w.Code)
		assert.Contains(t, w.Body.String(), `"result"`)
		closeSessions(s)
	})
}

// The SDK closes a session whose initialize failed, and one that a POST without
// session made by accident: nothing is left of either.
func TestSDKLeavesNoSessionWithoutInitialize(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, h := sdkServer(sdkID, nil)
		for _, body := range []string{pingBody, "nonsense", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":7}`} {
			serve(h, newRequest("POST", "", body))
			for range s.Sessions() {
				t.Error("a session is left")
			}
		}
	})
}

// end.go cancels orphans through notifications/cancelled: it reaches a handler's
// context while the call's own request is over.
func TestSDKCancelsAnOrphan(t *testing.T) {
	virtual(t, func(t *testing.T) {
		cancelled := make(chan error, 1)
		s, h := sdkServer(sdkID, nil)
		s.AddTool(&mcp.Tool{Name: "wait", InputSchema: map[string]any{"type": "object"}},
			func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				<-ctx.Done()
				cancelled <- ctx.Err()
				return nil, ctx.Err()
			})
		serve(h, newRequest("POST", "", initBody))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(h, newRequest("POST", sdkID, toolFixed("wait")).WithContext(ctx))
		}()
		synctest.Wait()
		cancel()
		<-done
		synctest.Wait()
		require.Empty(t, cancelled, "a client that hangs up leaves its handler running")
		w := serve(h, newRequest("POST", sdkID, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`))
		assert.Equal(t, 202, w.Code)
		assert.Error(t, <-cancelled)
		closeSessions(s)
	})
}

// identity: the SDK itself refuses another user on a session that was opened with
// a token; a replay must carry the TokenInfo of its trigger.
func TestSDKChecksTheTokensUser(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, h := sdkServer(sdkID, nil)
		as := func(name, sid, body string) int {
			verify := func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
				return &auth.TokenInfo{UserID: name, Expiration: time.Now().Add(time.Hour)}, nil
			}
			return serve(auth.RequireBearerToken(verify, nil)(h), newRequest("POST", sid, body, header{"Authorization", "Bearer x"})).Code
		}
		require.Equal(t, 200, as("ann", "", initBody))
		assert.Equal(t, 200, as("ann", sdkID, pingBody))
		assert.Equal(t, 403, as("bob", sdkID, pingBody))
		closeSessions(s)
	})
}

// stream.go: a second GET of one stream is the SDK's 409.
func TestSDKRefusesASecondStream(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, h := sdkServer(sdkID, nil)
		serve(h, newRequest("POST", "", initBody))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(h, newRequest("GET", sdkID, "").WithContext(ctx))
		}()
		synctest.Wait()
		assert.Equal(t, 409, serve(h, newRequest("GET", sdkID, "")).Code)
		cancel()
		<-done
		closeSessions(s)
	})
}

// answer.go: this exact body makes the SDK's client report ErrSessionMissing.
func TestSDKClientKnowsOurNotFound(t *testing.T) {
	msg, err := jsonrpc.DecodeMessage([]byte(bodyGone))
	require.Error(t, err, "an error whose id is null is no response to a call (%v)", msg)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Mcp-Session-Id") != "" {
			answerJSON(w, http.StatusNotFound, bodyGone)
			return
		}
		s, h := sdkServer(sdkID, nil)
		defer closeSessions(s)
		h.ServeHTTP(w, req)
	}))
	defer srv.Close()
	client := mcp.NewClient(&mcp.Implementation{Name: "c"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: srv.URL, DisableStandaloneSSE: true}, nil)
	if err == nil {
		_, err = session.ListTools(t.Context(), nil)
		_ = session.Close()
	}
	assert.True(t, errors.Is(err, mcp.ErrSessionMissing), "%v", err)
}
