package mongostore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// The tests that need a server are in internal/ferrettest, a module of its own.

func TestNewRefuses(t *testing.T) {
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1/"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	for _, c := range []struct {
		name   string
		client *mongo.Client
		opts   *Options
		want   string
	}{
		{"defaults", client, nil, ""},
		{"snapshot", client, &Options{ReadConcern: readconcern.Snapshot()}, ""},
		{"no client", nil, nil, "client is nil"},
		{"timeout", client, &Options{Timeout: -1}, "Options.Timeout"},
		{"local", client, &Options{ReadConcern: readconcern.Local()}, "Options.ReadConcern"},
	} {
		_, err := New(c.client, c.opts)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: New returned %v, want %q", c.name, err, c.want)
		}
	}
}

// Rule: errors name no key and no value, whatever the server says; the error
// itself stays within reach.
func TestFailedIsDiscreet(t *testing.T) {
	for _, server := range []error{
		mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 11000, Message: `E11000 dup key: { _id: "secret" }`}}},
		mongo.CommandError{Code: 11000, Name: "DuplicateKey", Message: `dup key: { _id: "secret" }`},
		mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{{
			WriteError: mongo.WriteError{Code: 11000, Message: "secret"},
		}}},
	} {
		err := failed(t.Context(), "put", server)
		if text := err.Error(); strings.Contains(text, "secret") || !strings.HasPrefix(text, "mongostore: put: ") ||
			!strings.Contains(text, "11000") {
			t.Errorf("the error of a %T is %q", server, text)
		}
		if !mongo.IsDuplicateKeyError(err) {
			t.Errorf("a %T is out of reach", server)
		}
	}
}

// Rule: after ctx ended the error says so, whatever the driver says.
func TestFailedAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := failed(ctx, "get", errors.New("connection closed")); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// Rule: expiry is never early, and no ttl rounds to nothing.
func TestUntil(t *testing.T) {
	now := time.UnixMilli(1000)
	for ttl, want := range map[time.Duration]int64{
		1: 1002, time.Millisecond: 1002, time.Millisecond + 1: 1003, time.Second: 2001,
	} {
		if got := until(now, ttl).UnixMilli(); got != want {
			t.Errorf("until(1000 ms, %v) is %d ms, want %d", ttl, got, want)
		}
	}
}
