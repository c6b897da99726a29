package mongostore_test

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/mongostore"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A gateway whose replicas share a collection.
func Example() {
	client, err := mongo.Connect(options.Client().
		ApplyURI("mongodb://127.0.0.1:27017/?replicaSet=rs0").
		SetServerSelectionTimeout(time.Second). // with no primary, calls fail after 1 s
		SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(context.Background())

	store, err := mongostore.New(client, nil)
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
