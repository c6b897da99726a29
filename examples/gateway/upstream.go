package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sessionshare/sessionshare"
)

// An upstream is the connection of one session's copy to one upstream server. It
// ends with the copy.
type upstream struct {
	name, url string
	stateful  bool // what it keeps for a session must be the same from all replicas
	session   *sessionshare.Session
	log       *slog.Logger

	mu   sync.Mutex         // guards all below; held while they are made
	conn *mcp.ClientSession // nil: not connected; always, if stateful
	id   string             // of the session there that all replicas share, if stateful
}

// connected returns the connection, making it if there is none.
func (u *upstream) connected(ctx context.Context) (conn *mcp.ClientSession, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		return u.conn, nil
	}
	if conn, err = u.dial(ctx, http.DefaultTransport); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(u.session.Context(), func() { _ = conn.Close() })
	go func() { // until conn is closed, at the latest when the copy ends
		_ = conn.Wait()
		stop()
		u.drop(conn)
	}()
	u.conn = conn
	return conn, nil
}

// dial opens a session at the upstream. The gateway offers the upstream's tools and
// nothing that comes unasked, so that it needs no stream.
func (u *upstream) dial(ctx context.Context, rt http.RoundTripper) (*mcp.ClientSession, error) {
	if u.url == "" {
		return nil, errors.New("there is no upstream of this name")
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "gateway", Version: "1"}, nil)
	return client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: u.url, HTTPClient: &http.Client{Transport: rt}, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: protocolVersion})
}

// protocolVersion is the newest one with sessions.
const protocolVersion = "2025-11-25"

// drop forgets a connection that does not work any more.
func (u *upstream) drop(conn *mcp.ClientSession) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == conn {
		u.conn = nil
	}
}

// addTools gives server the tools of the upstream, under the upstream's name.
func (u *upstream) addTools(ctx context.Context, server *mcp.Server, readOnly bool) error {
	conn, err := u.forListing(ctx)
	if err != nil {
		return err
	}
	if u.stateful {
		defer conn.Close()
	}
	for tool, err := range conn.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if readOnly && (tool.Annotations == nil || !tool.Annotations.ReadOnlyHint) {
			continue
		}
		mine := *tool
		mine.Name = u.name + "_" + tool.Name
		server.AddTool(&mine, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return u.call(ctx, tool.Name, req)
		})
	}
	return nil
}

// forListing returns a connection that the tools can be read from. A stateful
// upstream is given a session of ours when it is used, not when it is looked at.
func (u *upstream) forListing(ctx context.Context) (*mcp.ClientSession, error) {
	if u.stateful {
		return u.dial(ctx, http.DefaultTransport)
	}
	return u.connected(ctx)
}

// call passes a call on. An upstream that says it does not know the session has
// not begun, so that the call is sent once more on a new one. After any other
// failure it may have done its work, and whether to repeat it is for the client to
// say.
func (u *upstream) call(ctx context.Context, tool string, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if u.stateful {
		return u.callShared(ctx, tool, req.Params.Arguments)
	}
	for again := false; ; again = true {
		conn, err := u.connected(ctx)
		if err != nil {
			return nil, u.away(err)
		}
		res, err := conn.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: req.Params.Arguments})
		if errors.Is(err, mcp.ErrSessionMissing) && !again {
			u.drop(conn)
			continue
		}
		return res, err
	}
}

// away is what a client is told of an upstream that cannot be reached; where it is
// and why it cannot is for the log.
func (u *upstream) away(err error) error {
	u.log.Warn("an upstream cannot be reached", "upstream", u.name, "error", err)
	return errors.New("upstream " + u.name + " cannot be reached")
}
