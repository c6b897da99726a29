package sqlitestore_test

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/sqlitestore"
)

// A gateway that runs as several processes on one host, which share a file.
func Example() {
	const file = "/var/lib/gateway/sessions.db"
	writes, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		log.Fatal(err)
	}
	defer writes.Close()
	writes.SetMaxOpenConns(1)
	reads, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		log.Fatal(err)
	}
	defer reads.Close()
	reads.SetMaxOpenConns(4)

	store, err := sqlitestore.New(writes, &sqlitestore.Options{Reads: reads})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(context.Background()); err != nil {
		log.Fatal(err)
	}
	replica, err := sessionshare.New(sessionshare.Options{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"},
		&mcp.ServerOptions{GetSessionID: replica.GetSessionID})
	http.Handle("/mcp", replica.Handler(func(*http.Request) *mcp.Server { return server }, nil))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	web := &http.Server{Addr: "127.0.0.1:8080"}
	go web.ListenAndServe()
	<-ctx.Done()
	replica.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	web.Shutdown(ctx)
	replica.Shutdown(ctx)
}
