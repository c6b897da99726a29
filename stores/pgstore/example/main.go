// One replica of an MCP server whose sessions are in PostgreSQL. Start it as often
// as you like behind a load balancer that knows nothing of sessions.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/pgstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("ADDR"), os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()

	store, err := pgstore.New(pool, nil)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil { // makes the table if it is not there
		return err
	}
	replica, err := sessionshare.New(sessionshare.Options{Store: store, Logger: slog.Default()})
	if err != nil {
		return err
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "example", Version: "1"}, &mcp.ServerOptions{GetSessionID: replica.GetSessionID})
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "greets"}, greet)
	mux := http.NewServeMux()
	mux.Handle("/mcp", replica.Handler(func(*http.Request) *mcp.Server { return server }, nil))
	web := &http.Server{Addr: addr, Handler: mux}

	ended := make(chan error, 1)
	go func() { ended <- web.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	replica.Drain() // streams end; a real deploy now waits until the load balancer has noticed
	last, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(web.Shutdown(last), replica.Shutdown(last))
}

type whom struct {
	Name string `json:"name"`
}

func greet(_ context.Context, _ *mcp.CallToolRequest, in whom) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("Hello, %s", in.Name)}}}, nil, nil
}
