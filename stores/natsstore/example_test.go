package natsstore_test

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/natsstore"
)

// A gateway whose replicas share a bucket.
func Example() {
	nc, err := nats.Connect("nats://127.0.0.1:4222",
		nats.ReconnectBufSize(-1),                // no write is sent after its caller gave up
		nats.MaxReconnects(-1),                   // the server may be away for long
		nats.ReconnectWait(100*time.Millisecond), // back soon after it is
		nats.PingInterval(5*time.Second),         // a dead connection is noticed in 10 s
		nats.FlusherTimeout(2*time.Second),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	store, err := natsstore.New(nc, nil) // in a cluster: &natsstore.Options{Replicas: 3}
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
