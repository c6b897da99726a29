package interop

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what sessions are for

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Args are what all tools here take.
type Args struct {
	Text string `json:"text,omitempty"`
	N    int    `json:"n,omitempty"`
	MS   int    `json:"ms,omitempty"`
}

// resourceURI is what can be read and subscribed to.
const resourceURI = "note://one"

type tool = func(context.Context, *mcp.CallToolRequest, Args) (string, error)

// newServer returns the server of replica i. All replicas offer the same; answers
// begin with the number of the replica and a bar.
func newServer(i int, j *Journal, sessionID func() string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "interop", Version: "1"}, &mcp.ServerOptions{
		GetSessionID: sessionID,
		SubscribeHandler: func(_ context.Context, req *mcp.SubscribeRequest) error {
			j.Add("subscribe %s %s %d", req.Session.ID(), req.Params.URI, i)
			return nil
		},
		UnsubscribeHandler: func(_ context.Context, req *mcp.UnsubscribeRequest) error {
			j.Add("unsubscribe %s %s %d", req.Session.ID(), req.Params.URI, i)
			return nil
		},
		RootsListChangedHandler: func(_ context.Context, req *mcp.RootsListChangedRequest) {
			j.Add("roots %s %d", req.Session.ID(), i)
		},
		CompletionHandler: func(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{
				Values: []string{req.Params.Argument.Value + "-completed"},
			}}, nil
		},
	})
	for name, f := range tools(i, j) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, req *mcp.CallToolRequest, a Args) (*mcp.CallToolResult, any, error) {
			text, err := f(ctx, req, a)
			if err != nil {
				return nil, nil, fmt.Errorf("%d|%w", i, err)
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("%d|%s", i, text)}}}, nil, nil
		})
	}
	s.AddResource(&mcp.Resource{URI: resourceURI, Name: "one"}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, Text: fmt.Sprintf("%d|note", i)}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "who"}}}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		text := fmt.Sprintf("%d|hello %s", i, req.Params.Arguments["who"])
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}}}, nil
	})
	return s
}

func tools(i int, j *Journal) map[string]tool {
	return map[string]tool{
		"echo": func(_ context.Context, _ *mcp.CallToolRequest, a Args) (string, error) { return a.Text, nil },
		"sleep": func(ctx context.Context, _ *mcp.CallToolRequest, a Args) (string, error) {
			j.Add("begun %s %d", a.Text, i)
			select {
			case <-time.After(time.Duration(a.MS) * time.Millisecond):
				return a.Text, nil
			case <-ctx.Done():
				j.Add("cancelled %s", a.Text)
				return "", ctx.Err()
			}
		},
		"elicit": func(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
			return elicit(ctx, req.Session, a.Text)
		},
		"elicitMany": elicitMany,
		"elicitURL": func(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
			res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
				Mode: "url", Message: a.Text, URL: "https://example.com/" + a.Text, ElicitationID: a.Text,
			})
			if err != nil {
				return "", err
			}
			return res.Action, nil
		},
		"sample": sample,
		"roots": func(ctx context.Context, req *mcp.CallToolRequest, _ Args) (string, error) {
			res, err := req.Session.ListRoots(ctx, nil)
			if err != nil {
				return "", err
			}
			var uris []string
			for _, r := range res.Roots {
				uris = append(uris, r.URI)
			}
			return strings.Join(uris, " "), nil
		},
		"ping": func(ctx context.Context, req *mcp.CallToolRequest, _ Args) (string, error) {
			return "pong", req.Session.Ping(ctx, nil)
		},
		"progress": progress,
		"log": func(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
			for _, level := range []mcp.LoggingLevel{"debug", "info", "error"} {
				err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "tool", Data: fmt.Sprintf("%s-%s-%d", a.Text, level, i)})
				if err != nil {
					return "", err
				}
			}
			return a.Text, nil
		},
		"hangUp": func(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
			if req.Extra == nil || req.Extra.CloseSSEStream == nil {
				return "", errors.New("the stream of this call cannot be closed")
			}
			req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 50 * time.Millisecond})
			time.Sleep(time.Duration(a.MS) * time.Millisecond)
			return a.Text, nil
		},
	}
}

// elicit asks the client text, and returns its answer.
func elicit(ctx context.Context, s *mcp.ServerSession, text string) (string, error) {
	res, err := s.Elicit(ctx, &mcp.ElicitParams{
		Message: text,
		RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"answer": map[string]any{"type": "string"}},
		},
	})
	if err != nil {
		return "", err
	}
	if res.Action != "accept" {
		return res.Action, nil
	}
	return fmt.Sprint(res.Content["answer"]), nil
}

// elicitMany asks a.N questions at once, and returns the answers in their order.
func elicitMany(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
	answers, errs := make([]string, a.N), make([]error, a.N)
	var all sync.WaitGroup
	for n := range a.N {
		all.Go(func() { answers[n], errs[n] = elicit(ctx, req.Session, fmt.Sprintf("%s-%d", a.Text, n)) })
	}
	all.Wait()
	return strings.Join(answers, ","), errors.Join(errs...)
}

func sample(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
	res, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
		MaxTokens: 10,
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: a.Text}}},
	})
	if err != nil {
		return "", err
	}
	text, ok := res.Content.(*mcp.TextContent)
	if !ok {
		return "", fmt.Errorf("sampled a %T", res.Content)
	}
	return text.Text, nil
}

func progress(ctx context.Context, req *mcp.CallToolRequest, a Args) (string, error) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return "", errors.New("no progress token")
	}
	for n := range a.N {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(n + 1), Total: float64(a.N), Message: fmt.Sprintf("%s-%d", a.Text, n+1),
		})
		if err != nil {
			return "", err
		}
	}
	return a.Text, nil
}
