package ferrettest

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/mongostore"
	"github.com/sessionshare/sessionshare/storetest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func connect(t *testing.T, url string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(url).
		SetServerSelectionTimeout(time.Second).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		client.Disconnect(ctx)
	})
	return client
}

func openStore(t *testing.T, url string, opts *mongostore.Options) *mongostore.Store {
	t.Helper()
	s, err := mongostore.New(connect(t, url), opts)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestConformance(t *testing.T) {
	url, opts := os.Getenv("SESSIONSHARE_TEST_MONGO_URL"), storetest.Options{}
	if url == "" {
		// FerretDB reads whole collections, and one command at a time: lives must
		// outlast some calls. Expiry to the ms is what TestUntil of mongostore is for.
		p := startServer(t)
		url, opts.Stall, opts.Precision = p.url(), p.stall, time.Second
	}
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return openStore(t, url, nil)
	}, opts)
}

// Rule: what was acknowledged survives kill -9, an outage is an error, and the
// store works again without help.
func TestKilledServer(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url(), nil)
	for i := range 20 {
		if err := s.PutDelete(t.Context(), "closed."+strconv.Itoa(i), []byte("1"), time.Hour, "session"); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, _, err := s.Get(ctx, "closed.1"); err == nil || !strings.HasPrefix(err.Error(), "mongostore: get: ") {
		t.Errorf("Get without a server returned %v", err)
	}
	if took := time.Since(began); took > 800*time.Millisecond {
		t.Errorf("Get without a server took %v, its deadline was 300 ms", took)
	}
	p.start(t)
	t.Logf("worked again %v after the restart", untilWorks(t, func() error {
		_, _, err := s.Get(t.Context(), "closed.1")
		return err
	}))
	for i := range 20 {
		if _, found, err := s.Get(t.Context(), "closed."+strconv.Itoa(i)); !found || err != nil {
			t.Fatalf("mark %d after kill -9: found %t, %v", i, found, err)
		}
	}
}

// Rule: PutDelete is in that order also when it is cut in the middle. Here the
// server refuses the put, for a reason of its own, and must then not delete.
func TestPutDeleteCut(t *testing.T) {
	p := startServer(t)
	client := connect(t, p.url())
	s, err := mongostore.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"taken": "1", "session": "record"} {
		if err := s.Put(t.Context(), key, []byte(value), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	_, err = client.Database(mongostore.DefaultDatabase).Collection(mongostore.DefaultCollection).Indexes().
		CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "v", Value: 1}}, Options: options.Index().SetUnique(true)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.PutDelete(ctx, "mark", []byte("1"), time.Hour, "session"); err == nil {
		t.Error("PutDelete returned no error though the server refused the put")
	}
	if _, found, err := s.Get(t.Context(), "session"); !found || err != nil {
		t.Errorf("the record after the put was refused: found %t, %v", found, err)
	}
}

// Rule: a call whose context has no deadline has one all the same.
func TestDefaultDeadline(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url(), &mongostore.Options{Timeout: 500 * time.Millisecond})
	defer p.stall()()
	began := time.Now()
	_, _, err := s.Get(context.Background(), "k")
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("Get without a deadline returned %v after %v", err, took)
	}
}

// Rule: Sweep removes what has expired, and what PutDelete has emptied.
func TestSweepFrees(t *testing.T) {
	p := startServer(t)
	client := connect(t, p.url())
	s, err := mongostore.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 250 {
		ttl := time.Millisecond
		if i%10 == 0 {
			ttl = time.Hour
		}
		if err := s.Put(t.Context(), strconv.Itoa(i), []byte("v"), ttl); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutDelete(t.Context(), "mark", []byte("1"), time.Hour, "0"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := client.Database(mongostore.DefaultDatabase).Collection(mongostore.DefaultCollection).
		CountDocuments(t.Context(), bson.D{})
	if err != nil || n != 25 {
		t.Errorf("%d documents are left, %v; want 25", n, err)
	}
}
