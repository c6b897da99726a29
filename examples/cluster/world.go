package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/roundrobin"
)

// The people of this play.
const (
	alice   = "alice"
	mallory = "mallory"
)

const replicas = 3

// A world is three replicas behind a proxy, and Alice's client.
type world struct {
	cluster *roundrobin.Cluster
	shared  [replicas]*sessionshare.Replica // nil in a world without sharing
	client  *mcp.ClientSession              // nil while Alice has no session
	wire    *wire                           // her client's HTTP
}

// whereami is what the tool of the same name tells.
type whereami struct {
	Replica string `json:"replica"`
	Session string `json:"session,omitempty"` // as logs name it
	User    string `json:"user,omitempty"`
}

// newSharedWorld starts replicas of one cluster.
func newSharedWorld(opts sessionshare.Options) (*world, error) {
	w := &world{}
	return w, w.start(func(i int) (roundrobin.Node, error) {
		replica, err := sessionshare.New(opts)
		if err != nil {
			return roundrobin.Node{}, err
		}
		w.shared[i] = replica
		server := newServer(name(i), &mcp.ServerOptions{GetSessionID: replica.GetSessionID})
		handler := replica.Handler(func(*http.Request) *mcp.Server { return server }, nil)
		return roundrobin.Node{Handler: signed(name(i), handler), Stop: replica.Shutdown}, nil
	})
}

// newBareWorld starts replicas of the SDK alone.
func newBareWorld() (*world, error) {
	w := &world{}
	return w, w.start(func(i int) (roundrobin.Node, error) {
		server := newServer(name(i), nil)
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
		return roundrobin.Node{Handler: signed(name(i), handler)}, nil
	})
}

func (w *world) start(newNode func(int) (roundrobin.Node, error)) (err error) {
	w.cluster, err = roundrobin.Start(replicas, roundrobin.Options{}, newNode)
	return err
}

func (w *world) close() {
	if w.client != nil {
		_ = w.client.Close()
	}
	w.cluster.Close()
}

func newServer(replica string, opts *mcp.ServerOptions) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "cluster", Version: "1"}, opts)
	mcp.AddTool(server, &mcp.Tool{Name: "whereami", Description: "Says which replica answers, for which session."},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, whereami, error) {
			out := whereami{Replica: replica}
			if s, ok := sessionshare.SessionFromContext(ctx); ok {
				out.Session, out.User = s.Digest(), s.Binding().Principal
			}
			return nil, out, nil
		})
	return server
}

// user is who sent a request. A real gateway verifies a token: see examples/gateway.
func user(req *http.Request) (string, error) {
	name, _, ok := req.BasicAuth()
	if !ok {
		return "", &sessionshare.StatusError{
			Status: http.StatusUnauthorized,
			Header: http.Header{"Www-Authenticate": {"Basic"}},
			Err:    errors.New("say who you are"),
		}
	}
	return name, nil
}

const replicaHeader = "X-Replica"

// signed notes in each answer which replica gave it.
func signed(replica string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set(replicaHeader, replica)
		h.ServeHTTP(w, req)
	})
}

func name(i int) string { return string(rune('A' + i)) }

// index is the inverse of name.
func index(replica string) int { return int(replica[0] - 'A') }

// How open reaches the replicas.
const (
	balanced = false
	pinned   = true // all requests of the handshake go to replica A
)

// open opens a session for Alice with the SDK's own client.
func (w *world) open(ctx context.Context, pin bool) (err error) {
	if w.client != nil {
		_ = w.client.Close()
		w.client = nil
	}
	w.wire = &wire{user: alice}
	if pin {
		u, err := url.Parse(w.cluster.ReplicaURL(0))
		if err != nil {
			return err
		}
		w.wire.pinned.Store(&u.Host)
		defer w.wire.pinned.Store(nil)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "alice's client", Version: "1"}, nil)
	w.client, err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   w.cluster.URL() + "/mcp",
		HTTPClient: &http.Client{Transport: w.wire},
	}, nil)
	return err
}

// opener is the replica that opened Alice's session.
func (w *world) opener() string { return w.wire.servedBy("initialize") }

// call calls the tool whereami in Alice's session.
func (w *world) call(ctx context.Context) (whereami, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var out whereami
	res, err := w.client.CallTool(ctx, &mcp.CallToolParams{Name: "whereami"})
	if err != nil {
		return out, err
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok || res.IsError {
		return out, errors.New("the tool failed")
	}
	return out, json.Unmarshal([]byte(text.Text), &out)
}

// sessionLost reports whether err says that a replica does not know the session.
func sessionLost(err error) bool {
	return errors.Is(err, mcp.ErrSessionMissing) || strings.Contains(err.Error(), http.StatusText(http.StatusNotFound))
}

// A wire is the HTTP of a client: it says who sends, and notes who answered.
type wire struct {
	user   string
	pinned atomic.Pointer[string] // host that gets all requests, past the proxy

	mu   sync.Mutex // guards hops
	hops []hop
}

// A hop is one request and the replica that answered it.
type hop struct{ what, replica string }

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	what := req.Method
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		var message struct{ Method string }
		if json.Unmarshal(body, &message) == nil && message.Method != "" {
			what = message.Method
		}
	}
	req = req.Clone(req.Context())
	req.SetBasicAuth(w.user, "")
	if host := w.pinned.Load(); host != nil {
		req.URL.Host = *host
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hops = append(w.hops, hop{what, resp.Header.Get(replicaHeader)})
	}
	return resp, err
}

// trail returns the requests so far, in the order of their answers.
func (w *wire) trail() []hop {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]hop(nil), w.hops...)
}

func (w *wire) servedBy(what string) string {
	for _, h := range w.trail() {
		if h.what == what {
			return h.replica
		}
	}
	return ""
}
