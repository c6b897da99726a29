package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sessionshare/sessionshare"
)

// A config is what one replica of the gateway needs.
type config struct {
	name      string // of this replica, for logs
	store     sessionshare.SharedStore
	registry  *registry
	upstreams map[string]string // MCP endpoints of upstream servers, by name
	stateful  map[string]bool   // those of which a session needs the same one all the time
	log       *slog.Logger

	noticed time.Duration // until the load balancer has noticed that readiness fails
	grace   time.Duration // for running calls, when the replica is shut down
}

// A gateway is one replica of the gateway.
type gateway struct {
	config
	share *sessionshare.Replica
	mux   *http.ServeMux
	ready atomic.Bool
}

// toolScope is the header by which a client narrows down what its session may
// use, once and for all: "read" leaves the tools that change nothing.
const toolScope = "X-Tool-Scope"

func newGateway(cfg config) (*gateway, error) {
	g := &gateway{config: cfg, mux: http.NewServeMux()}
	g.log = g.log.With("replica", g.name)
	var err error
	g.share, err = sessionshare.New(sessionshare.Options{
		Store:       g.store,
		Endpoint:    g.endpoint,
		Scope:       g.scope,
		OpenHeaders: []string{toolScope},
		Check:       g.check,
		Ended:       g.ended,
		Logger:      g.log,
		// No hint tells of a revoked grant, so that check has to ask this often.
		RecheckInterval: recheck,
		// Principal is left to its default: the UserID that verify found.
	})
	if err != nil {
		return nil, err
	}
	user := auth.RequireBearerToken(g.registry.verify, nil)
	g.mux.Handle("/mcp/{name}", user(g.share.Handler(g.server, nil)))
	g.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !g.ready.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	g.handleAdmin()
	return g, nil
}

// endpoint says what a request addresses. That the registry has no such endpoint
// is known; that the registry cannot be read is not the client's fault.
func (g *gateway) endpoint(req *http.Request) (sessionshare.Endpoint, error) {
	name := req.PathValue("name")
	e, err := g.registry.endpoint(name)
	if errors.Is(err, fs.ErrNotExist) {
		return sessionshare.Endpoint{}, sessionshare.ErrGone
	}
	return sessionshare.Endpoint{Name: name, Incarnation: e.Incarnation}, err
}

// scope freezes under which grant a session is opened, so that it ends with it.
func (g *gateway) scope(req *http.Request, _ sessionshare.Binding) ([]byte, error) {
	switch s := req.Header.Get(toolScope); s {
	case "", "read":
	default:
		return nil, &sessionshare.StatusError{
			Status: http.StatusBadRequest,
			Err:    fmt.Errorf("%s is %q, and may be \"read\"", toolScope, s),
		}
	}
	grant, _ := auth.TokenInfoFromContext(req.Context()).Extra["grant"].(string)
	return []byte(grant), nil
}

// check ends sessions whose grant was revoked, also those with an open stream and
// no requests. An expired token is no reason: its client will bring a new one.
func (g *gateway) check(_ context.Context, b sessionshare.Binding) error {
	gone, err := g.registry.revoked(string(b.Scope))
	if gone {
		return sessionshare.ErrGone
	}
	return err
}

// recheck is for how long a session may outlive its grant.
const recheck = 2 * time.Second

// factoryTimeout bounds how long upstreams may take to be connected.
const factoryTimeout = 8 * time.Second

// server makes the MCP server of one session's copy on this replica: the tools of
// the endpoint's upstreams. Whatever it looks at is the same on all replicas: the
// session's binding, the headers named in OpenHeaders, and the endpoint, which is
// never edited.
func (g *gateway) server(req *http.Request) *mcp.Server {
	session, _ := sessionshare.SessionFromContext(req.Context())
	log := g.log.With("session", session.Digest())
	bound := session.Binding()
	e, err := g.registry.endpoint(bound.Endpoint.Name)
	if err != nil || e.Incarnation != bound.Endpoint.Incarnation {
		log.Warn("the endpoint has changed while a session was made", "endpoint", bound.Endpoint.Name, "error", err)
		return nil
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "gateway/" + bound.Endpoint.Name, Version: "1"},
		&mcp.ServerOptions{
			GetSessionID: g.share.GetSessionID,
			// An endpoint of which nothing may be used has tools all the same: none.
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		})
	ctx, cancel := context.WithTimeout(session.Context(), factoryTimeout)
	defer cancel()
	readOnly := req.Header.Get(toolScope) == "read"
	for _, name := range e.Upstreams {
		up := &upstream{name: name, url: g.upstreams[name], stateful: g.stateful[name], session: session, log: log}
		// Half the tools would be worse than none: the client is told to come again.
		if err := up.addTools(ctx, server, readOnly); err != nil {
			log.Warn("an upstream cannot be reached", "upstream", name, "error", err)
			return nil
		}
	}
	log.Info("session here", "user", bound.Principal, "endpoint", bound.Endpoint.Name, "resumed", session.Resumed())
	return server
}
