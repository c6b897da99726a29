package main

//lint:file-ignore SA1019 sampling was deprecated in the version after the one that is tested here

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addQuestions adds the tools that ask the client something while they run. The
// answer may come in at any replica.
func addQuestions(server *mcp.Server) {
	type prompt struct {
		Prompt string `json:"prompt" jsonschema:"what to ask the model"`
	}
	add(server, "test_sampling", "Asks the client's model.", func(ctx context.Context, req *mcp.CallToolRequest, in prompt) (*mcp.CallToolResult, error) {
		res, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
			Messages:  []*mcp.SamplingMessage{{Role: "user", Content: text(in.Prompt)}},
			MaxTokens: 100,
		})
		if err != nil {
			return nil, err
		}
		said, ok := res.Content.(*mcp.TextContent)
		if !ok {
			return nil, errors.New("the model answered with something else than text")
		}
		return result(text("LLM response: " + said.Text)), nil
	})
	type message struct {
		Message string `json:"message" jsonschema:"what to ask the user"`
	}
	add(server, "test_elicitation", "Asks the user.", func(ctx context.Context, req *mcp.CallToolRequest, in message) (*mcp.CallToolResult, error) {
		return ask(ctx, req, "User response", in.Message, `{
			"username": {"type": "string", "description": "User's response"},
			"email": {"type": "string", "description": "User's email address"}
		}`, "username", "email")
	})
	add(server, "test_elicitation_sep1034_defaults", "Asks with defaults of all types.", func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
		return ask(ctx, req, "Elicitation completed", "Is that right?", `{
			"name": {"type": "string", "default": "John Doe"},
			"age": {"type": "integer", "default": 30},
			"score": {"type": "number", "default": 95.5},
			"status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
			"verified": {"type": "boolean", "default": true}
		}`)
	})
	add(server, "test_elicitation_sep1330_enums", "Asks with all kinds of choices.", func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
		return ask(ctx, req, "Elicitation completed", "Which ones?", `{
			"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
			"titledSingle": {"type": "string", "oneOf": [
				{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}, {"const": "value3", "title": "Third Option"}]},
			"legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
			"untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
			"titledMulti": {"type": "array", "items": {"anyOf": [
				{"const": "value1", "title": "First Choice"}, {"const": "value2", "title": "Second Choice"}, {"const": "value3", "title": "Third Choice"}]}}
		}`)
	})
}

// ask asks the user for the properties of a form, and reports the answer.
func ask(ctx context.Context, req *mcp.CallToolRequest, label, message, properties string, required ...string) (*mcp.CallToolResult, error) {
	schema := map[string]any{"type": "object", "properties": json.RawMessage(properties)}
	if required != nil {
		schema["required"] = required
	}
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: schema})
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(res.Content)
	if err != nil {
		return nil, err
	}
	return result(text(fmt.Sprintf("%s: action=%s, content=%s", label, res.Action, content))), nil
}
