package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An upstream is the connection of one session's copy to one upstream server. It
// ends with the copy, and is made again if the upstream has lost it.
type upstream struct {
	name, url string
	life      context.Context // ends with the copy
	log       *slog.Logger

	mu      sync.Mutex         // guards session; held while it is made
	session *mcp.ClientSession // nil: not connected
}

// connected returns the connection, making it if there is none.
func (u *upstream) connected(ctx context.Context) (*mcp.ClientSession, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session != nil {
		return u.session, nil
	}
	if u.url == "" {
		return nil, errors.New("there is no upstream of this name")
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "gateway", Version: "1"}, nil)
	// The gateway offers the upstream's tools and nothing that comes unasked, so
	// that it needs no stream.
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: u.url, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(u.life, func() { _ = session.Close() })
	go func() {
		_ = session.Wait()
		stop()
		u.drop(session)
	}()
	u.session = session
	return session, nil
}

// drop forgets a connection that does not work any more.
func (u *upstream) drop(session *mcp.ClientSession) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session == session {
		u.session = nil
	}
}

// addTools gives server the tools of the upstream, under the upstream's name.
func (u *upstream) addTools(ctx context.Context, server *mcp.Server, readOnly bool) error {
	session, err := u.connected(ctx)
	if err != nil {
		return err
	}
	for tool, err := range session.Tools(ctx, nil) {
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

// call passes a call on. An upstream that says it does not know the session has
// not begun, so that the call is sent once more; after any other failure it may
// have done its work, and whether to repeat it is for the client to say.
func (u *upstream) call(ctx context.Context, tool string, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for again := false; ; again = true {
		session, err := u.connected(ctx)
		if err != nil {
			u.log.Warn("an upstream cannot be reached", "upstream", u.name, "error", err)
			return nil, errors.New("upstream " + u.name + " cannot be reached")
		}
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: req.Params.Arguments})
		if errors.Is(err, mcp.ErrSessionMissing) && !again {
			u.drop(session)
			continue
		}
		return res, err
	}
}
