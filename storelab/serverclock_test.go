//go:build unix

package storelab

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// serverClock asks the server of a store for its time.
func serverClock(t *testing.T, store, addr string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var now time.Time
	var err error
	switch store {
	case "Redis":
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer client.Close()
		now, err = client.Time(ctx).Result()
	case "PostgreSQL":
		var conn *pgx.Conn
		conn, err = pgx.Connect(ctx, postgresURL(addr))
		must(t, conn, err)
		defer conn.Close(ctx)
		err = conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	case "NATS":
		now, err = natsClock(ctx, addr)
	case "FerretDB":
		var client *mongo.Client
		client, err = mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/"))
		must(t, client, err)
		defer func() { _ = client.Disconnect(ctx) }()
		var hello struct {
			LocalTime time.Time `bson:"localTime"`
		}
		err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
		now = hello.LocalTime
	}
	must(t, now, err)
	return strconv.FormatInt(now.Unix(), 10)
}

// natsClock makes a stream, since the server tells its time with that of a stream.
func natsClock(ctx context.Context, addr string) (time.Time, error) {
	nc, err := nats.Connect("nats://" + addr)
	if err != nil {
		return time.Time{}, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return time.Time{}, err
	}
	s, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "clock", Subjects: []string{"clock"}})
	if err != nil {
		return time.Time{}, err
	}
	return s.CachedInfo().TimeStamp, nil
}
