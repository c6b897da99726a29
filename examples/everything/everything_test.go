package main

//lint:file-ignore SA1019 sampling and logging were deprecated in the version after the one that is tested here

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// What a client gets from three replicas is what it gets from one of the bare SDK:
// answers, questions, log messages and progress.
func TestThreeReplicasAreLikeOne(t *testing.T) {
	bare := use(t, setup{bare: true})
	require.Contains(t, bare, "tool test_elicitation", "%v", bare)
	for name, s := range map[string]setup{
		"new connections":  {replicas: 3},
		"kept connections": {replicas: 3, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, bare, use(t, s))
		})
	}
}

// use uses all that a server offers, and returns what came of it.
func use(t *testing.T, s setup) map[string]any {
	t.Helper()
	s.log = slog.New(slog.DiscardHandler)
	c, err := s.start()
	require.NoError(t, err)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex // guards heard
	heard := map[string]int{}
	hear := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		heard[what]++
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"username": "u", "email": "e"}}, nil
		},
		CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Content: req.Params.Messages[0].Content, Model: "echo"}, nil
		},
		LoggingMessageHandler:       func(_ context.Context, req *mcp.LoggingMessageRequest) { hear("log " + req.Params.Data.(string)) },
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { hear("progress") },
	})
	cs, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: c.URL() + "/mcp"}, nil)
	require.NoError(t, err)
	defer cs.Close()
	require.NoError(t, cs.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}))

	got := map[string]any{}
	note := func(what string, res any, err error) {
		require.NoError(t, err, what)
		data, err := json.Marshal(res)
		require.NoError(t, err)
		got[what] = string(data)
	}
	for tool, err := range cs.Tools(ctx, nil) {
		note("listed "+tool.Name, tool, err)
		params := &mcp.CallToolParams{Name: tool.Name, Arguments: arguments(tool)}
		params.SetProgressToken(tool.Name)
		res, err := cs.CallTool(ctx, params)
		note("tool "+tool.Name, res, err)
	}
	for r, err := range cs.Resources(ctx, nil) {
		note("listed "+r.URI, r, err)
		res, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.URI})
		note("resource "+r.URI, res, err)
	}
	res, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://template/7/data"})
	note("template", res, err)
	for p, err := range cs.Prompts(ctx, nil) {
		note("listed "+p.Name, p, err)
		args := map[string]string{}
		for _, a := range p.Arguments {
			args[a.Name] = "test://" + a.Name
		}
		res, err := cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: p.Name, Arguments: args})
		note("prompt "+p.Name, res, err)
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return heard["progress"] == 3 && len(heard) == 4
	}, 5*time.Second, 5*time.Millisecond, "three log messages and three of progress")
	got["heard"] = heard
	return got
}

// arguments gives each argument a tool requires a word.
func arguments(tool *mcp.Tool) map[string]any {
	args := map[string]any{}
	schema, _ := tool.InputSchema.(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		args[name.(string)] = "word"
	}
	return args
}
