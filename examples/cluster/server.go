package main

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sessionshare/sessionshare"
)

// newServer makes the MCP server of a replica.
func (w *world) newServer(i int, opts *mcp.ServerOptions) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "cluster", Version: "1"}, opts)
	add := func(tool, description string, f func(context.Context, *mcp.ServerSession) (answer string, err error)) {
		mcp.AddTool(server, &mcp.Tool{Name: tool, Description: description},
			func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, told, error) {
				answer, err := f(ctx, req.Session)
				out := told{Replica: name(i), Answer: answer}
				if s, ok := sessionshare.SessionFromContext(ctx); ok {
					out.Session, out.User = s.Digest(), s.Binding().Principal
				}
				return nil, out, err
			})
	}
	add("whereami", "Says which replica answers, for which session.",
		func(context.Context, *mcp.ServerSession) (string, error) { return "", nil })
	add("confirm", "Asks the user before it does something.", confirm)
	add("wait", "Takes long.", func(ctx context.Context, _ *mcp.ServerSession) (string, error) {
		w.waiting <- event{"begun", name(i)}
		select {
		case <-ctx.Done():
			w.waiting <- event{"cancelled", name(i)}
		case <-time.After(patience):
			w.waiting <- event{"finished", name(i)}
		}
		return "", ctx.Err()
	})
	w.servers[i] = server
	return server
}

func confirm(ctx context.Context, session *mcp.ServerSession) (string, error) {
	res, err := session.Elicit(ctx, &mcp.ElicitParams{
		Message: "Deploy to production?",
		RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"sure": map[string]any{"type": "boolean"}},
		},
	})
	if err != nil {
		return "", err
	}
	return res.Action, nil
}
