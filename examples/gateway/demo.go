package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A demo is three upstream servers: a clock, which changes nothing, a notebook,
// which does, and a browser, which is somewhere else for each session.
type demo struct {
	urls     map[string]string
	stateful map[string]bool
	servers  []*http.Server
}

func startDemo() (*demo, error) {
	d := &demo{urls: map[string]string{}, stateful: map[string]bool{"browser": true}}
	for name, server := range map[string]*mcp.Server{"clock": newClock(), "notes": newNotes(), "browser": newBrowser()} {
		if err := d.add(name, server); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

func (d *demo) add(name string, server *mcp.Server) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler:           mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = s.Serve(l) }()
	d.servers = append(d.servers, s)
	d.urls[name] = "http://" + l.Addr().String()
	return nil
}

func (d *demo) close() {
	for _, s := range d.servers {
		_ = s.Close()
	}
}

var readOnly = &mcp.ToolAnnotations{ReadOnlyHint: true}

func newClock() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "clock", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "now", Description: "What time it is.", Annotations: readOnly},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return text(time.Now().Format(time.RFC3339)), nil, nil
		})
	return server
}

func newNotes() *mcp.Server {
	var mu sync.Mutex // guards notes
	notes := map[string]string{}
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	type note struct {
		Title string `json:"title"`
		Text  string `json:"text,omitempty"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "write", Description: "Writes a note."},
		func(_ context.Context, _ *mcp.CallToolRequest, n note) (*mcp.CallToolResult, any, error) {
			mu.Lock()
			defer mu.Unlock()
			notes[n.Title] = n.Text
			return text("written"), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "read", Description: "Reads a note.", Annotations: readOnly},
		func(_ context.Context, _ *mcp.CallToolRequest, n note) (*mcp.CallToolResult, any, error) {
			mu.Lock()
			defer mu.Unlock()
			content, ok := notes[n.Title]
			if !ok {
				return nil, nil, errors.New("there is no such note")
			}
			return text(content), nil, nil
		})
	return server
}

func newBrowser() *mcp.Server {
	var mu sync.Mutex // guards pages
	pages := map[string]string{}
	server := mcp.NewServer(&mcp.Implementation{Name: "browser", Version: "1"}, nil)
	type page struct {
		URL string `json:"url"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "goto", Description: "Goes to a page."},
		func(_ context.Context, req *mcp.CallToolRequest, p page) (*mcp.CallToolResult, any, error) {
			mu.Lock()
			defer mu.Unlock()
			pages[req.Session.ID()] = p.URL
			return text("there"), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "page", Description: "Where the browser is.", Annotations: readOnly},
		func(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			mu.Lock()
			defer mu.Unlock()
			return text(pages[req.Session.ID()]), nil, nil
		})
	return server
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
