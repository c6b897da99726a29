package natsstore_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/natsstore"
	"github.com/sessionshare/sessionshare/storetest"
)

// precision: whole seconds, and what the server's timer needs.
const precision = 1300 * time.Millisecond

func TestConformance(t *testing.T) {
	url, opts := os.Getenv("SESSIONSHARE_TEST_NATS_URL"), storetest.Options{Precision: precision}
	if url == "" {
		p := startServer(t)
		url, opts.Stall = p.url, p.stall
	}
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return openStore(t, url, nil)
	}, opts)
}

// Rule: a call returns soon after its context ends. With large values the
// connection fills up, and the client holds its lock while it writes. A machine
// that is busy with other things is given three tries.
func TestDeadlineLargeValues(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url, nil)
	value := make([]byte, 64<<10)
	if err := s.Put(t.Context(), "k", value, time.Hour); err != nil {
		t.Fatal(err)
	}
	latest := time.Hour
	for try := 0; try < 3 && latest > 50*time.Millisecond; try++ {
		resume := p.stall()
		latest = min(latest, stalledCalls(t, s, value))
		resume()
		untilWorks(t, s, "k")
	}
	t.Logf("1000 callers, 64 KiB values, server stopped: the last call returned %v after its deadline", latest)
	if latest > 50*time.Millisecond {
		t.Errorf("a call returned %v after its deadline", latest)
	}
}

// stalledCalls makes 1000 calls at once, and returns how long after its
// deadline the last one returned.
func stalledCalls(t *testing.T, s *natsstore.Store, value []byte) time.Duration {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	end, _ := ctx.Deadline()
	var wg sync.WaitGroup
	late := make([]time.Duration, 1000)
	for i := range late {
		wg.Go(func() {
			var err error
			switch i % 4 {
			case 0:
				_, _, err = s.Get(ctx, "k")
			case 1:
				err = s.Publish(ctx, "k", value[:4<<10])
			case 2:
				err = s.Subscribe(ctx, []string{"k"}, func(string, []byte) {})
			default:
				err = s.Put(ctx, "k", value, time.Hour)
			}
			late[i] = time.Since(end)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call returned %v", err)
			}
		})
	}
	wg.Wait()
	return slices.Max(late)
}

// untilWorks waits until key can be read, and returns how long that took.
func untilWorks(t *testing.T, s *natsstore.Store, key string) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, found, err := s.Get(ctx, key)
		cancel()
		if err == nil {
			if !found {
				t.Fatal("the key is missing")
			}
			return time.Since(began)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Rule: what was acknowledged survives kill -9, an outage is an error and fails
// at once, and the store works again without help.
func TestKilledServer(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url, nil)
	for i := range 100 {
		if err := s.Put(t.Context(), "k"+strconv.Itoa(i), []byte("v"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	began := time.Now()
	if _, _, err := s.Get(t.Context(), "k1"); err == nil {
		t.Error("Get without a server returned no error")
	}
	if err := s.Put(t.Context(), "late", []byte("v"), time.Hour); err == nil {
		t.Error("Put without a server returned no error")
	}
	t.Logf("two calls failed in %v", time.Since(began))
	p.start(t)
	t.Logf("worked again %v after the restart", untilWorks(t, s, "k1"))
	for i := range 100 {
		if _, found, err := s.Get(t.Context(), "k"+strconv.Itoa(i)); !found || err != nil {
			t.Fatalf("key %d after kill -9: found %t, %v", i, found, err)
		}
	}
	if _, found, err := s.Get(t.Context(), "late"); found || err != nil {
		t.Errorf("a Put that had failed was sent after the reconnect: found %t, %v", found, err)
	}
}

// Rule: nothing is kept for ever, neither what expired nor the trace of what
// was deleted.
func TestNothingStays(t *testing.T) {
	p := startServer(t)
	nc := connect(t, p.url)
	s, err := natsstore.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		key := "k" + strconv.Itoa(i)
		err := s.Put(t.Context(), key, []byte("v"), time.Second)
		if err == nil && i%2 == 0 {
			err = s.Delete(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_"+natsstore.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == 0 {
			t.Logf("the bucket was empty after %v", time.Since(began))
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d messages stay", info.State.Msgs)
		}
	}
}

// Rule: Migrate gives a bucket that is there what the store needs and keeps the
// rest; without that the store refuses to work on it.
func TestMigrateExisting(t *testing.T) {
	p := startServer(t)
	nc := connect(t, p.url)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := natsstore.New(nc, &natsstore.Options{Bucket: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Get without a bucket returned %v", err)
	}
	_, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "mine", History: 5, MaxBytes: 1 << 20, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "k", []byte("v"), time.Second); err == nil || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Put into a bucket without lives returned %v", err)
	}
	for range 2 {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(t.Context(), "k", []byte("v"), time.Second); err != nil {
		t.Error(err)
	}
	stream, err := js.Stream(t.Context(), "KV_mine")
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	if c.AllowDirect || !c.AllowMsgTTL || c.MaxMsgsPerSubject != 1 || c.MaxAge != 0 || c.MaxBytes != 1<<20 {
		t.Errorf("the bucket after Migrate: %+v", c)
	}
}

func TestNewRefuses(t *testing.T) {
	p := startServer(t)
	for _, c := range []struct {
		name string
		set  []nats.Option
		opts *natsstore.Options
		want string
	}{
		{"good", nil, nil, ""},
		{"buffer", []nats.Option{nats.ReconnectBufSize(1 << 20)}, nil, "add nats.ReconnectBufSize(-1)"},
		{"reconnects", []nats.Option{nats.MaxReconnects(60)}, nil, "add nats.MaxReconnects(-1)"},
		{"no reconnect", []nats.Option{nats.NoReconnect()}, nil, "add nats.MaxReconnects(-1)"},
		{"bucket", nil, &natsstore.Options{Bucket: "a.b"}, "Options.Bucket"},
		{"timeout", nil, &natsstore.Options{Timeout: -1}, "Options.Timeout"},
	} {
		_, err := natsstore.New(connect(t, p.url, c.set...), c.opts)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: New returned %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := natsstore.New(nil, nil); err == nil {
		t.Error("New(nil, nil) returned no error")
	}
}

// Rule: a call whose context has no deadline has one all the same.
func TestDefaultDeadline(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url, &natsstore.Options{Timeout: 200 * time.Millisecond})
	defer p.stall()()
	began := time.Now()
	_, _, err := s.Get(context.Background(), "k")
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("Get without a deadline returned %v after %v", err, took)
	}
}
