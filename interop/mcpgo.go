package interop

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what sessions are for

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// MCPGo is the client of mark3labs/mcp-go, with a stream: without one it believes
// that the Go SDK's server speaks a version without sessions.
var MCPGo = Maker{
	Name: "mcp-go",
	New: func() (Client, error) {
		return &mcpGoClient{roots: []mcp.Root{{URI: "file:///first", Name: "first"}}}, nil
	},
	Quirks: []Quirk{NoResumeAfterReset, NoLastEventID},
}

type mcpGoClient struct {
	c      *client.Client
	seen   Seen
	tokens atomic.Int64

	mu    sync.Mutex // guards roots
	roots []mcp.Root
}

// telling is a transport that tells the server of a call which was cancelled.
// mcp-go leaves that to its user.
type telling struct{ *transport.StreamableHTTP }

func (t telling) SendRequest(ctx context.Context, req transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	res, err := t.StreamableHTTP.SendRequest(ctx, req)
	if ctx.Err() != nil && req.Method == "tools/call" {
		n := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION}
		n.Method = "notifications/cancelled"
		n.Params.AdditionalFields = map[string]any{"requestId": req.ID}
		_ = t.SendNotification(context.WithoutCancel(ctx), n)
	}
	return res, err
}

func (c *mcpGoClient) Seen() *Seen { return &c.seen }

func (c *mcpGoClient) SessionID() string { return c.c.GetSessionId() }

func (c *mcpGoClient) Connect(ctx context.Context, url string) error {
	t, err := transport.NewStreamableHTTP(url, transport.WithContinuousListening(), transport.WithHTTPLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	c.c = client.NewClient(telling{t},
		client.WithElicitationHandler(c), client.WithSamplingHandler(c), client.WithRootsHandler(c),
	)
	c.c.OnNotification(c.notified)
	if err := c.c.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	req := mcp.InitializeRequest{}
	req.Params.ProtocolVersion = "2025-11-25"
	req.Params.ClientInfo = mcp.Implementation{Name: "interop-mcp-go", Version: "1"}
	req.Params.Capabilities.Elicitation = &mcp.ElicitationCapability{Form: &struct{}{}, URL: &struct{}{}}
	_, err = c.c.Initialize(ctx, req)
	return err
}

// notified is called for each notification from the server.
func (c *mcpGoClient) notified(n mcp.JSONRPCNotification) {
	field := func(name string) string { return fmt.Sprint(n.Params.AdditionalFields[name]) }
	switch n.Method {
	case "notifications/message":
		c.seen.Add("log", field("data"))
	case "notifications/progress":
		c.seen.Add("progress", field("message"))
	case "notifications/resources/updated":
		c.seen.Add("updated", field("uri"))
	case "notifications/tools/list_changed":
		c.seen.Add("tools", "")
	case "notifications/prompts/list_changed":
		c.seen.Add("prompts", "")
	case "notifications/resources/list_changed":
		c.seen.Add("resources", "")
	}
}

// Elicit implements client.ElicitationHandler.
func (c *mcpGoClient) Elicit(_ context.Context, req mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	action, answer := reply(req.Params.Mode, req.Params.Message)
	res := &mcp.ElicitationResult{}
	res.Action = mcp.ElicitationResponseAction(action)
	if answer != "" {
		res.Content = map[string]any{"answer": answer}
	}
	return res, nil
}

// CreateMessage implements client.SamplingHandler.
func (c *mcpGoClient) CreateMessage(_ context.Context, req mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	raw, err := json.Marshal(req.Messages[0].Content)
	if err != nil {
		return nil, err
	}
	var content struct{ Text string }
	if err := json.Unmarshal(raw, &content); err != nil {
		return nil, err
	}
	res := &mcp.CreateMessageResult{Model: "m"}
	res.Role = "assistant"
	res.Content = mcp.NewTextContent("re: " + content.Text)
	return res, nil
}

// ListRoots implements client.RootsHandler.
func (c *mcpGoClient) ListRoots(context.Context, mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &mcp.ListRootsResult{Roots: append([]mcp.Root(nil), c.roots...)}, nil
}

func (c *mcpGoClient) List(ctx context.Context) (l Lists, err error) {
	tools, err := c.c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return l, err
	}
	resources, err := c.c.ListResources(ctx, mcp.ListResourcesRequest{})
	if err != nil {
		return l, err
	}
	prompts, err := c.c.ListPrompts(ctx, mcp.ListPromptsRequest{})
	if err != nil {
		return l, err
	}
	for _, t := range tools.Tools {
		l.Tools = append(l.Tools, t.Name)
	}
	for _, r := range resources.Resources {
		l.Resources = append(l.Resources, r.URI)
	}
	for _, p := range prompts.Prompts {
		l.Prompts = append(l.Prompts, p.Name)
	}
	return l, nil
}

func (c *mcpGoClient) Read(ctx context.Context, uri string) (string, error) {
	req := mcp.ReadResourceRequest{}
	req.Params.URI = uri
	res, err := c.c.ReadResource(ctx, req)
	if err != nil {
		return "", err
	}
	return res.Contents[0].(mcp.TextResourceContents).Text, nil
}

func (c *mcpGoClient) Prompt(ctx context.Context, who string) (string, error) {
	req := mcp.GetPromptRequest{}
	req.Params.Name = "greet"
	req.Params.Arguments = map[string]string{"who": who}
	res, err := c.c.GetPrompt(ctx, req)
	if err != nil {
		return "", err
	}
	return res.Messages[0].Content.(mcp.TextContent).Text, nil
}

func (c *mcpGoClient) Complete(ctx context.Context, prefix string) (string, error) {
	req := mcp.CompleteRequest{}
	req.Params.Ref = mcp.PromptReference{Type: "ref/prompt", Name: "greet"}
	req.Params.Argument = mcp.CompleteArgument{Name: "who", Value: prefix}
	res, err := c.c.Complete(ctx, req)
	if err != nil {
		return "", err
	}
	return res.Completion.Values[0], nil
}

func (c *mcpGoClient) Call(ctx context.Context, tool string, a Args) (string, error) {
	req := mcp.CallToolRequest{}
	req.Params.Name = tool
	req.Params.Arguments = a
	req.Params.Meta = &mcp.Meta{ProgressToken: fmt.Sprintf("call-%d", c.tokens.Add(1))}
	res, err := c.c.CallTool(ctx, req)
	if err != nil {
		return "", err
	}
	text := res.Content[0].(mcp.TextContent).Text
	if res.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

func (c *mcpGoClient) Ping(ctx context.Context) error { return c.c.Ping(ctx) }

func (c *mcpGoClient) SetLevel(ctx context.Context, level string) error {
	req := mcp.SetLevelRequest{}
	req.Params.Level = mcp.LoggingLevel(level)
	return c.c.SetLevel(ctx, req)
}

func (c *mcpGoClient) Subscribe(ctx context.Context, uri string) error {
	req := mcp.SubscribeRequest{}
	req.Params.URI = uri
	return c.c.Subscribe(ctx, req)
}

func (c *mcpGoClient) Unsubscribe(ctx context.Context, uri string) error {
	req := mcp.UnsubscribeRequest{}
	req.Params.URI = uri
	return c.c.Unsubscribe(ctx, req)
}

func (c *mcpGoClient) AddRoot(ctx context.Context, uri string) error {
	c.mu.Lock()
	c.roots = append(c.roots, mcp.Root{URI: uri, Name: uri})
	c.mu.Unlock()
	return c.c.RootListChanges(ctx)
}

func (c *mcpGoClient) Terminate(context.Context) error { return c.c.Close() }

func (c *mcpGoClient) Close() {
	if c.c != nil {
		_ = c.c.Close()
	}
}
