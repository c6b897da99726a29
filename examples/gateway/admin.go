package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/sessionshare/sessionshare"
)

// handleAdmin adds the routes by which endpoints and tokens come and go. They may
// be sent to any replica.
func (g *gateway) handleAdmin() {
	admin := auth.RequireBearerToken(g.registry.verify, &auth.RequireBearerTokenOptions{Scopes: []string{adminScope}})
	handle := func(pattern string, h func(*http.Request) (any, error)) {
		g.mux.Handle(pattern, admin(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			req.Body = http.MaxBytesReader(w, req.Body, 64<<10)
			answer, err := h(req)
			g.answer(w, req, answer, err)
		})))
	}
	handle("PUT /admin/endpoints/{name}", g.createEndpoint)
	handle("DELETE /admin/endpoints/{name}", g.deleteEndpoint)
	handle("POST /admin/tokens", g.issueToken)
	handle("DELETE /admin/grants/{grant}", g.revokeGrant)
}

func (g *gateway) createEndpoint(req *http.Request) (any, error) {
	var body struct {
		Upstreams []string `json:"upstreams"`
	}
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		return nil, badRequest{err}
	}
	for _, name := range body.Upstreams {
		if g.upstreams[name] == "" {
			return nil, badRequest{errors.New("there is no upstream " + name)}
		}
	}
	return g.registry.create(req.PathValue("name"), body.Upstreams)
}

// deleteEndpoint removes an endpoint first, so that nothing new is opened on it,
// and then ends the sessions it had, on all replicas. The sessions of an endpoint
// that is made anew meanwhile, here or elsewhere, are others.
func (g *gateway) deleteEndpoint(req *http.Request) (any, error) {
	name := req.PathValue("name")
	e, err := g.registry.remove(name)
	if err != nil {
		return nil, err
	}
	err = g.share.CloseEndpoint(req.Context(), sessionshare.Endpoint{Name: name, Incarnation: e.Incarnation})
	if err != nil {
		// The Replica goes on trying, so this is done, if not everywhere yet.
		g.log.Warn("sessions of a deleted endpoint end later", "endpoint", name, "error", err)
	}
	return e, nil
}

func (g *gateway) issueToken(req *http.Request) (any, error) {
	var body struct {
		User    string   `json:"user"`
		Grant   string   `json:"grant"` // to refresh; "" for a new one
		Scopes  []string `json:"scopes"`
		Seconds int      `json:"seconds"`
	}
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		return nil, badRequest{err}
	}
	if body.User == "" || body.Seconds <= 0 {
		return nil, badRequest{errors.New("user and seconds are needed")}
	}
	secret, t, err := g.registry.issue(body.User, body.Grant, body.Scopes, time.Duration(body.Seconds)*time.Second)
	return map[string]any{"token": secret, "grant": t.Grant, "expires": t.Expires}, err
}

// revokeGrant ends the tokens of a grant at once, and its sessions when replicas
// check them again.
func (g *gateway) revokeGrant(req *http.Request) (any, error) {
	return struct{}{}, g.registry.revoke(req.PathValue("grant"))
}

// badRequest is an error of whoever sent a request.
type badRequest struct{ error }

func (g *gateway) answer(w http.ResponseWriter, req *http.Request, answer any, err error) {
	var bad badRequest
	switch {
	case err == nil:
		g.log.Info("registry changed", "method", req.Method, "path", req.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	case errors.As(err, &bad):
		http.Error(w, bad.Error(), http.StatusBadRequest)
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, "no such thing", http.StatusNotFound)
	case errors.Is(err, fs.ErrExist):
		http.Error(w, "it is there already", http.StatusConflict)
	default:
		g.log.Error("registry failed", "error", err)
		http.Error(w, "the registry failed", http.StatusInternalServerError)
	}
}
