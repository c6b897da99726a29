// Command everything is an MCP server that offers what the official conformance
// suite asks for, on any number of replicas:
//
//	go run ./examples/everything               # three replicas that share sessions
//	go run ./examples/everything -replicas 5 -kept
//	go run ./examples/everything -bare         # one replica of the SDK alone
//
// It prints the URL and serves until it is told to end. The test beside it runs the
// suite against both kinds and compares.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/roundrobin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var s setup
	flag.IntVar(&s.replicas, "replicas", 3, "how many replicas share sessions")
	flag.BoolVar(&s.bare, "bare", false, "one replica, without sharing")
	flag.BoolVar(&s.kept, "kept", false, "connections to replicas are kept for further requests")
	flag.BoolVar(&s.json, "json", false, "answers are JSON where they can be, not streams")
	flag.Parse()
	s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c, err := s.start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "everything:", err)
		os.Exit(1)
	}
	defer c.Close()
	fmt.Println(c.URL() + "/mcp")
	<-ctx.Done()
}

// A setup is how the server is to run.
type setup struct {
	replicas int
	bare     bool
	kept     bool
	json     bool
	log      *slog.Logger
}

// start starts the replicas behind a strict round-robin proxy.
func (s setup) start() (*roundrobin.Cluster, error) {
	store := sessionshare.NewMemoryStore()
	opts := roundrobin.Options{KeepAlive: s.kept, Logger: s.log}
	if s.bare {
		return roundrobin.Start(1, opts, func(int) (roundrobin.Node, error) {
			server := newServer(nil)
			return roundrobin.Node{
				Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, s.handlerOptions()),
			}, nil
		})
	}
	return roundrobin.Start(s.replicas, opts, func(i int) (roundrobin.Node, error) {
		replica, err := sessionshare.New(sessionshare.Options{Store: store, Logger: s.log.With("replica", i)})
		if err != nil {
			return roundrobin.Node{}, err
		}
		server := newServer(replica.GetSessionID)
		return roundrobin.Node{
			Handler: replica.Handler(func(*http.Request) *mcp.Server { return server }, s.handlerOptions()),
			Stop:    replica.Shutdown,
		}, nil
	})
}

// handlerOptions are the same with and without sharing. A replica's event store is
// its own: what it streamed can be asked for again.
func (s setup) handlerOptions() *mcp.StreamableHTTPOptions {
	return &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil), JSONResponse: s.json}
}

// newServer makes a server; getSessionID may be nil.
func newServer(getSessionID func() string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "everything", Version: "1"}, &mcp.ServerOptions{
		GetSessionID:       getSessionID,
		CompletionHandler:  complete,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addTools(server)
	addQuestions(server)
	addResources(server)
	addPrompts(server)
	return server
}
