package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
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
	servers [replicas]*mcp.Server
	client  *mcp.ClientSession // nil while Alice has no session
	wire    *wire              // her client's HTTP

	waiting chan event    // what happens to the tool wait
	changes chan struct{} // the client was told that tools have changed
}

func newWorld() *world {
	return &world{waiting: make(chan event, 10), changes: make(chan struct{}, 100)}
}

// told is what the tools tell.
type told struct {
	Replica string `json:"replica"`
	Session string `json:"session,omitempty"` // as logs name it
	User    string `json:"user,omitempty"`
	Answer  string `json:"answer,omitempty"` // of Alice, if she was asked
}

// An event is something that happens to a call, without an answer.
type event struct{ what, replica string }

// newSharedWorld starts replicas of one cluster.
func newSharedWorld(opts sessionshare.Options) (*world, error) {
	w := newWorld()
	return w, w.start(func(i int) (roundrobin.Node, error) {
		replica, err := sessionshare.New(opts)
		if err != nil {
			return roundrobin.Node{}, err
		}
		w.shared[i] = replica
		server := w.newServer(i, &mcp.ServerOptions{GetSessionID: replica.GetSessionID})
		handler := replica.Handler(func(*http.Request) *mcp.Server { return server }, nil)
		return roundrobin.Node{Handler: signed(name(i), handler), Stop: replica.Shutdown}, nil
	})
}

// newBareWorld starts replicas of the SDK alone.
func newBareWorld() (*world, error) {
	w := newWorld()
	return w, w.start(func(i int) (roundrobin.Node, error) {
		server := w.newServer(i, nil)
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
	client := mcp.NewClient(&mcp.Implementation{Name: "alice's client", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"sure": true}}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { w.changes <- struct{}{} },
	})
	w.client, err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   w.cluster.URL() + "/mcp",
		HTTPClient: &http.Client{Transport: w.wire},
	}, nil)
	return err
}

// opener is the replica that opened Alice's session.
func (w *world) opener() string { return w.wire.servedBy("initialize") }

// call calls a tool in Alice's session.
func (w *world) call(ctx context.Context, tool string) (told, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var out told
	res, err := w.client.CallTool(ctx, &mcp.CallToolParams{Name: tool})
	if err != nil {
		return out, err
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok || res.IsError {
		return out, fmt.Errorf("the tool failed: %v", res.Content)
	}
	return out, json.Unmarshal([]byte(text.Text), &out)
}

// sessionLost reports whether err says that a replica does not know the session.
func sessionLost(err error) bool {
	return errors.Is(err, mcp.ErrSessionMissing) || strings.Contains(err.Error(), http.StatusText(http.StatusNotFound))
}
