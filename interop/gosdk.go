package interop

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what sessions are for

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// GoSDK is the client of the Go SDK.
var GoSDK = Maker{Name: "go-sdk", New: func() (Client, error) { return newGoClient(), nil }}

type goClient struct {
	client  *mcp.Client
	session *mcp.ClientSession
	seen    Seen
	tokens  atomic.Int64
}

func newGoClient() *goClient {
	c := &goClient{}
	c.client = mcp.NewClient(&mcp.Implementation{Name: "interop-go", Version: "1"}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{ListChanged: true},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			action, answer := reply(req.Params.Mode, req.Params.Message)
			res := &mcp.ElicitResult{Action: action}
			if answer != "" {
				res.Content = map[string]any{"answer": answer}
			}
			return res, nil
		},
		CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			text := req.Params.Messages[0].Content.(*mcp.TextContent).Text
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "re: " + text}}, nil
		},
		ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { c.seen.Add("tools", "") },
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { c.seen.Add("prompts", "") },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { c.seen.Add("resources", "") },
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			c.seen.Add("updated", req.Params.URI)
		},
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
			c.seen.Add("log", fmt.Sprint(req.Params.Data))
		},
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			c.seen.Add("progress", req.Params.Message)
		},
	})
	c.client.AddRoots(&mcp.Root{URI: "file:///first", Name: "first"})
	return c
}

// slowness is how long a client thinks about what begins with "slow".
const slowness = 300 * time.Millisecond

// reply is how every client here answers what it is asked.
func reply(mode, message string) (action, answer string) {
	switch {
	case mode == "url":
		return "accept", ""
	case strings.HasPrefix(message, "refuse"):
		return "decline", ""
	case strings.HasPrefix(message, "slow"):
		time.Sleep(slowness)
	}
	return "accept", "re: " + message
}

func (c *goClient) Seen() *Seen { return &c.seen }

func (c *goClient) SessionID() string { return c.session.ID() }

func (c *goClient) Connect(ctx context.Context, url string) (err error) {
	c.session, err = c.client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	return err
}

func (c *goClient) List(ctx context.Context) (l Lists, err error) {
	for t, err := range c.session.Tools(ctx, nil) {
		if err != nil {
			return l, err
		}
		l.Tools = append(l.Tools, t.Name)
	}
	for r, err := range c.session.Resources(ctx, nil) {
		if err != nil {
			return l, err
		}
		l.Resources = append(l.Resources, r.URI)
	}
	for p, err := range c.session.Prompts(ctx, nil) {
		if err != nil {
			return l, err
		}
		l.Prompts = append(l.Prompts, p.Name)
	}
	return l, nil
}

func (c *goClient) Read(ctx context.Context, uri string) (string, error) {
	res, err := c.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	return res.Contents[0].Text, nil
}

func (c *goClient) Prompt(ctx context.Context, who string) (string, error) {
	res, err := c.session.GetPrompt(ctx, &mcp.GetPromptParams{Name: "greet", Arguments: map[string]string{"who": who}})
	if err != nil {
		return "", err
	}
	return res.Messages[0].Content.(*mcp.TextContent).Text, nil
}

func (c *goClient) Complete(ctx context.Context, prefix string) (string, error) {
	res, err := c.session.Complete(ctx, &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"},
		Argument: mcp.CompleteParamsArgument{Name: "who", Value: prefix},
	})
	if err != nil {
		return "", err
	}
	return strings.Join(res.Completion.Values, " "), nil
}

func (c *goClient) Call(ctx context.Context, tool string, a Args) (string, error) {
	params := &mcp.CallToolParams{Name: tool, Arguments: a}
	params.SetProgressToken(fmt.Sprintf("call-%d", c.tokens.Add(1)))
	res, err := c.session.CallTool(ctx, params)
	if err != nil {
		return "", err
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

func (c *goClient) Ping(ctx context.Context) error { return c.session.Ping(ctx, nil) }

func (c *goClient) SetLevel(ctx context.Context, level string) error {
	return c.session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(level)})
}

func (c *goClient) Subscribe(ctx context.Context, uri string) error {
	return c.session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
}

func (c *goClient) Unsubscribe(ctx context.Context, uri string) error {
	return c.session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
}

// AddRoot tells the server by itself.
func (c *goClient) AddRoot(_ context.Context, uri string) error {
	c.client.AddRoots(&mcp.Root{URI: uri, Name: uri})
	return nil
}

func (c *goClient) Terminate(context.Context) error { return c.session.Close() }

func (c *goClient) Close() {
	if c.session != nil {
		_ = c.session.Close()
	}
}
