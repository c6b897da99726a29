package main

//lint:file-ignore SA1019 logging was deprecated in the version after the one that is tested here

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/png"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type none struct{}

func text(s string) mcp.Content { return &mcp.TextContent{Text: s} }

func result(content ...mcp.Content) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: content}
}

// add adds a tool with typed arguments and free content.
func add[In any](server *mcp.Server, name, description string, f func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, error)) {
	mcp.AddTool(server, &mcp.Tool{Name: name, Description: description},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
			res, err := f(ctx, req, in)
			return res, nil, err
		})
}

// addTools adds the tools that ask nothing.
func addTools(server *mcp.Server) {
	fixed := func(name, description string, content ...mcp.Content) {
		add(server, name, description, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
			return result(content...), nil
		})
	}
	fixed("test_simple_text", "Returns text.", text("This is a simple text response for testing."))
	fixed("test_image_content", "Returns an image.", picture())
	fixed("test_audio_content", "Returns a sound.", &mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"})
	fixed("test_embedded_resource", "Returns a resource.", &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
		URI: "test://embedded-resource", MIMEType: "text/plain", Text: "This is an embedded resource content.",
	}})
	fixed("test_multiple_content_types", "Returns a text, an image and a resource.",
		text("Multiple content types test:"), picture(), &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
			URI: "test://mixed-content-resource", MIMEType: "application/json", Text: `{"test":"data","value":123}`,
		}})
	add(server, "test_error_handling", "Fails.", func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, error) {
		//lint:ignore ST1005 it is the suite's wording
		return nil, errors.New("This tool intentionally returns an error for testing")
	})
	add(server, "test_tool_with_logging", "Logs while it runs.", logWhileRunning)
	add(server, "test_tool_with_progress", "Tells how far it is.", tellProgress)
	add(server, "test_reconnection", "Ends its stream before it answers.", reconnect)
	server.AddTool(&mcp.Tool{
		Name: "json_schema_2020_12_tool", Description: "Has a schema with keywords that are easily lost.",
		InputSchema: json.RawMessage(`{
			"$schema": "https://json-schema.org/draft/2020-12/schema",
			"type": "object",
			"$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
			"properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
			"additionalProperties": false
		}`),
	}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return result(text("The schema is what matters.")), nil
	})
}

// pause is the time between two messages of a tool.
const pause = 50 * time.Millisecond

func sleep(ctx context.Context) error {
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func logWhileRunning(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	for i, message := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if i > 0 {
			if err := sleep(ctx); err != nil {
				return nil, err
			}
		}
		if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: message}); err != nil {
			return nil, err
		}
	}
	return result(text("Three messages were logged.")), nil
}

func tellProgress(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for i, done := range []float64{0, 50, 100} {
		if i > 0 {
			if err := sleep(ctx); err != nil {
				return nil, err
			}
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100})
		if err != nil {
			return nil, err
		}
	}
	return result(text("Progress was told.")), nil
}

// reconnect ends the stream of its call, so that the client has to ask for the
// answer (SEP-1699).
func reconnect(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if req.Extra.CloseSSEStream != nil {
		req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 500 * time.Millisecond})
	}
	if err := sleep(ctx); err != nil {
		return nil, err
	}
	return result(text("The stream was ended, and this came all the same.")), nil
}

// pixel is a PNG of one red pixel.
func pixel() []byte {
	m := image.NewRGBA(image.Rect(0, 0, 1, 1))
	m.Set(0, 0, color.RGBA{R: 255, A: 255})
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err) // one pixel can be encoded
	}
	return b.Bytes()
}

func picture() mcp.Content { return &mcp.ImageContent{Data: pixel(), MIMEType: "image/png"} }

// silence is a WAV of eight silent samples.
func silence() []byte {
	const rate, samples = 8000, 8
	var b bytes.Buffer
	for _, v := range []any{
		[]byte("RIFF"), uint32(36 + samples), []byte("WAVEfmt "), uint32(16),
		uint16(1), uint16(1), uint32(rate), uint32(rate), uint16(1), uint16(8), // PCM, mono, 8 bit
		[]byte("data"), uint32(samples), bytes.Repeat([]byte{128}, samples),
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err) // a buffer takes all
		}
	}
	return b.Bytes()
}
