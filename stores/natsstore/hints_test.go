package natsstore_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sessionshare/sessionshare/stores/natsstore"
)

// Rule: Subscribe does not hide a gap. It returns when the server dies, and a
// new one works when the server is back.
func TestSubscribeBreaks(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url, nil)
	ended := make(chan error, 1)
	got := make(chan string, 100)
	subscribe := func() {
		ended <- s.Subscribe(t.Context(), []string{"c"}, func(_ string, msg []byte) { got <- string(msg) })
	}
	publish := func() {
		t.Helper()
		for began := time.Now(); ; {
			s.Publish(t.Context(), "c", []byte("hint"))
			select {
			case <-got:
				return
			case err := <-ended:
				t.Fatal("Subscribe returned", err)
			case <-time.After(10 * time.Millisecond):
			}
			if time.Since(began) > 10*time.Second {
				t.Fatal("no hint arrived")
			}
		}
	}
	go subscribe()
	publish()
	p.kill()
	began := time.Now()
	select {
	case err := <-ended:
		t.Logf("%v after kill -9: %v", time.Since(began), err)
	case <-time.After(5 * time.Second):
		t.Fatal("Subscribe did not return 5 s after kill -9")
	}
	if err := s.Subscribe(t.Context(), []string{"c"}, func(string, []byte) {}); err == nil {
		t.Error("Subscribe without a server returned no error")
	}
	p.start(t)
	for began := time.Now(); s.Migrate(t.Context()) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("no connection 10 s after the restart")
		}
	}
	go subscribe()
	publish()
}

// Rule: Subscribe does not hide a gap. It returns when the server is silent,
// though the connection stands.
func TestSubscribeSilence(t *testing.T) {
	p := startServer(t)
	nc := connect(t, p.url, nats.PingInterval(time.Hour))
	s, err := natsstore.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.SetPingInterval(200 * time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- s.Subscribe(t.Context(), []string{"c"}, func(string, []byte) {}) }()
	select {
	case err := <-ended:
		t.Fatal("Subscribe returned", err)
	case <-time.After(700 * time.Millisecond):
	}
	defer p.stall()()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "silent") {
			t.Errorf("Subscribe returned %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Subscribe did not return though the server was stopped for 5 s")
	}
}

// Rule: Subscribe does not hide a gap, also not one of its own making.
func TestSubscribeTooSlow(t *testing.T) {
	p := startServer(t)
	s := openStore(t, p.url, nil)
	first, gate := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	var once sync.Once
	go func() {
		ended <- s.Subscribe(t.Context(), []string{"c"}, func(string, []byte) {
			once.Do(func() { close(first) })
			<-gate
		})
	}()
	for started := false; !started; {
		s.Publish(t.Context(), "c", []byte("x"))
		select {
		case <-first:
			started = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	for range 6000 {
		if err := s.Publish(t.Context(), "c", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	s.Get(t.Context(), "k") // a round trip: the hints before it have come
	close(gate)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "too slow") {
			t.Errorf("Subscribe returned %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Subscribe went on after it had dropped hints")
	}
}
