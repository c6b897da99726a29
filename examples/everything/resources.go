package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func addResources(server *mcp.Server) {
	fixed := func(uri, name, mime string, c mcp.ResourceContents) {
		c.URI, c.MIMEType = uri, mime
		server.AddResource(&mcp.Resource{URI: uri, Name: name, Description: "A " + name + ".", MIMEType: mime},
			func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&c}}, nil
			})
	}
	fixed("test://static-text", "static text", "text/plain", mcp.ResourceContents{Text: "This is the content of the static text resource."})
	fixed("test://static-binary", "static image", "image/png", mcp.ResourceContents{Blob: pixel()})
	fixed("test://watched-resource", "watched resource", "text/plain", mcp.ResourceContents{Text: "Somebody watches this."})

	const before, after = "test://template/", "/data"
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: before + "{id}" + after, Name: "template", Description: "Data by ID.", MIMEType: "application/json",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		uri := req.Params.URI
		id := strings.TrimSuffix(strings.TrimPrefix(uri, before), after)
		data, err := json.Marshal(map[string]any{"id": id, "templateTest": true, "data": "Data for ID: " + id})
		if err != nil {
			return nil, err
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "application/json", Text: string(data)}}}, nil
	})
}

func addPrompts(server *mcp.Server) {
	said := func(c mcp.Content) *mcp.PromptMessage { return &mcp.PromptMessage{Role: "user", Content: c} }
	type messages = []*mcp.PromptMessage
	prompt := func(name, description string, arguments []string, f func(args map[string]string) messages) {
		p := &mcp.Prompt{Name: name, Description: description}
		for _, a := range arguments {
			p.Arguments = append(p.Arguments, &mcp.PromptArgument{Name: a, Description: "The " + a + ".", Required: true})
		}
		server.AddPrompt(p, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: f(req.Params.Arguments)}, nil
		})
	}
	prompt("test_simple_prompt", "A prompt.", nil, func(map[string]string) messages {
		return messages{said(text("This is a simple prompt for testing."))}
	})
	prompt("test_prompt_with_arguments", "A prompt with arguments.", []string{"arg1", "arg2"}, func(args map[string]string) messages {
		return messages{said(text(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"])))}
	})
	prompt("test_prompt_with_embedded_resource", "A prompt with a resource.", []string{"resourceUri"}, func(args map[string]string) messages {
		return messages{
			said(&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
				URI: args["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing.",
			}}),
			said(text("Please process the embedded resource above.")),
		}
	})
	prompt("test_prompt_with_image", "A prompt with an image.", nil, func(map[string]string) messages {
		return messages{said(picture()), said(text("Please analyze the image above."))}
	})
}

// complete completes arguments of prompts.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{}
	for _, v := range []string{"paris", "park", "party"} {
		if strings.HasPrefix(v, req.Params.Argument.Value) {
			values = append(values, v)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, nil
}
