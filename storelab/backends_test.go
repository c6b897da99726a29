//go:build unix

package storelab

import (
	"context"
	"database/sql"
	"io"
	"log"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/mongostore"
	"github.com/sessionshare/sessionshare/stores/natsstore"
	"github.com/sessionshare/sessionshare/stores/pgstore"
	"github.com/sessionshare/sessionshare/stores/redisstore"
	"github.com/sessionshare/sessionshare/stores/sqlitestore"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A backend is one store with its server, as its README says to set it up.
type backend struct {
	name  string
	start func(testing.TB) (s storeServer, addr string)
	// open makes a store with a client of its own, as a replica does.
	open func(t testing.TB, addr string) sessionshare.SharedStore
	slow bool // gets fewer clients
}

var networked = []backend{
	{name: "Redis", start: startRedis, open: openRedis},
	{name: "PostgreSQL", start: startPostgres, open: openPostgres},
	{name: "NATS", start: startNATS, open: openNATS},
	{name: "FerretDB", start: startFerret, open: openMongo, slow: true},
}

// sqlite has a file instead of an address, and no server.
var sqlite = backend{
	name:  "SQLite",
	start: func(t testing.TB) (storeServer, string) { return nil, filepath.Join(t.TempDir(), "sessions.db") },
	open:  openSQLite,
}

// quietRedis: the driver prints every failed dial, and here there are many.
var quietRedis = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func openRedis(t testing.TB, addr string) sessionshare.SharedStore {
	quietRedis()
	client := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, MaxRetries: 1, DialerRetries: 1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	s, err := redisstore.New(client, nil)
	return must(t, s, err)
}

func openPostgres(t testing.TB, addr string) sessionshare.SharedStore {
	pool, err := pgxpool.New(context.Background(), postgresURL(addr))
	must(t, pool, err)
	t.Cleanup(pool.Close)
	s, err := pgstore.New(pool, nil)
	must(t, s, err)
	return must(t, s, s.Migrate(t.Context()))
}

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

func openNATS(t testing.TB, addr string) sessionshare.SharedStore {
	nc, err := nats.Connect("nats://"+addr, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(5*time.Second), nats.FlusherTimeout(2*time.Second))
	must(t, nc, err)
	t.Cleanup(nc.Close)
	s, err := natsstore.New(nc, nil)
	must(t, s, err)
	return must(t, s, s.Migrate(t.Context()))
}

func openMongo(t testing.TB, addr string) sessionshare.SharedStore {
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/").
		SetServerSelectionTimeout(time.Second).SetHeartbeatInterval(500 * time.Millisecond))
	must(t, client, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	s, err := mongostore.New(client, nil)
	must(t, s, err)
	return must(t, s, s.Migrate(t.Context()))
}

func openSQLite(t testing.TB, file string) sessionshare.SharedStore {
	writes, err := sql.Open("sqlite", sqlitestore.DSN(file))
	must(t, writes, err)
	writes.SetMaxOpenConns(1)
	reads, err := sql.Open("sqlite", sqlitestore.DSN(file))
	must(t, reads, err)
	reads.SetMaxOpenConns(4)
	t.Cleanup(func() { reads.Close(); writes.Close() })
	s, err := sqlitestore.New(writes, &sqlitestore.Options{Reads: reads})
	must(t, s, err)
	return must(t, s, s.Migrate(t.Context()))
}

// must returns v unless there was an error, which ends the test.
func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func init() { log.SetOutput(io.Discard) } // drivers report what tests provoke
