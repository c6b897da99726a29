//go:build unix

package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sessionshare/sessionshare/internal/storeservers"
)

// TestPutDeleteRefused: a mark that the server has no memory for must not cost
// the record, and a plain pipeline would.
func TestPutDeleteRefused(t *testing.T) {
	server := storeservers.Redis(t)
	client := newClient(t, server.URL)
	s, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "record", "value", time.Hour)
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.PutDelete(t.Context(), "mark", []byte("1"), time.Hour, "record"); err == nil {
		t.Error("no error, though the server has no memory")
	}
	if _, found, err := s.Get(t.Context(), "record"); !found || err != nil {
		t.Errorf("the record is gone without its mark (%t, %v)", found, err)
	}
}

// TestPutDeleteCut cuts the connection at every byte of the request. Whatever
// arrived, the record is gone only if the mark is there.
func TestPutDeleteCut(t *testing.T) {
	server := storeservers.Redis(t)
	direct := newStore(t, server.URL, nil)
	for cut := 0; ; cut += 3 {
		p := newProxy(t, server.Addr)
		o := &redis.Options{
			Addr: p.addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, Protocol: 2, PoolSize: 1,
		}
		client := redis.NewClient(o)
		s, err := New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, "record", "value", time.Hour) // so the connection is up
		if err := direct.Delete(t.Context(), "mark"); err != nil {
			t.Fatal(err)
		}
		p.left.Store(int64(cut))
		err = s.PutDelete(t.Context(), "mark", []byte("1"), time.Hour, "record")
		_, record, _ := direct.Get(t.Context(), "record")
		_, mark, _ := direct.Get(t.Context(), "mark")
		if !record && !mark {
			t.Fatalf("cut after %d bytes: the record is gone, and there is no mark", cut)
		}
		_ = client.Close()
		if err == nil {
			if cut < 30 || record {
				t.Fatalf("cut after %d bytes: no error (record: %t)", cut, record)
			}
			return
		}
	}
}

// TestSwapIsNotRepeated: the answer to a swap is lost, and the client may try
// again. The second try would say that nothing was swapped, which is a lie.
func TestSwapIsNotRepeated(t *testing.T) {
	server := storeservers.Redis(t)
	p := newProxy(t, server.Addr)
	client := redis.NewClient(&redis.Options{Addr: p.addr, ContextTimeoutEnabled: true, MaxRetries: 3, PoolSize: 1})
	defer client.Close()
	s, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	if swapped, err := s.CompareAndSwap(t.Context(), "k", nil, []byte("1"), time.Hour); !swapped || err != nil {
		t.Fatal(swapped, err)
	}
	p.mute.Store(true)
	swapped, err := s.CompareAndSwap(t.Context(), "k", []byte("1"), []byte("2"), time.Hour)
	if err == nil {
		t.Errorf("a swap whose answer was lost reported %t and no error", swapped)
	}
	if v, _, err := newStore(t, server.URL, nil).Get(t.Context(), "k"); string(v) != "2" {
		t.Errorf("the swap was not made: the test does not test what it says (%q, %v)", v, err)
	}
}

// TestSubscribeBreaks: when the server dies the subscription ends, though the
// client could subscribe again by itself.
func TestSubscribeBreaks(t *testing.T) {
	server := storeservers.Redis(t)
	s := newStore(t, server.URL, nil)
	for round := range 2 {
		got, ended := make(chan string, 100), make(chan error, 1)
		go func() {
			ended <- s.Subscribe(t.Context(), []string{"c"}, func(_ string, msg []byte) { got <- string(msg) })
		}()
		deadline := time.After(10 * time.Second)
		for up := false; !up; {
			_ = s.Publish(t.Context(), "c", []byte("msg"))
			select {
			case <-got:
				up = true
			case err := <-ended:
				t.Fatalf("round %d: the subscription ended: %v", round, err)
			case <-deadline:
				t.Fatalf("round %d: nothing arrives", round)
			case <-time.After(10 * time.Millisecond):
			}
		}
		server.Kill()
		if round == 0 {
			server.Restart() // at once, so that subscribing again would work
		}
		select {
		case err := <-ended:
			if err == nil || !strings.HasPrefix(err.Error(), "redisstore: Subscribe: ") {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the subscription goes on after the server was killed")
		}
	}
}

// TestSubscribeNoticesSilence: a server that hangs, or a network that swallows
// everything, ends the subscription too.
func TestSubscribeNoticesSilence(t *testing.T) {
	server := storeservers.Redis(t)
	s := newStore(t, server.URL, nil)
	s.pingEvery = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Subscribe(ctx, []string{"c"}, func(string, []byte) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("on a quiet channel it ended with %v, before its context", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Subscribe(t.Context(), []string{"c"}, func(string, []byte) {}) }()
	time.Sleep(250 * time.Millisecond)
	server.Stop()
	defer server.Cont()
	select {
	case err := <-ended:
		if !errors.Is(err, errSilent) {
			t.Errorf("it ended with %v, want %v", err, errSilent)
		}
	case <-time.After(5 * time.Second):
		t.Error("the subscription waits for a server that hangs")
	}
}

// TestSubscribeEndsWhileConnecting: also with a server that accepts and says nothing.
func TestSubscribeEndsWhileConnecting(t *testing.T) {
	server := storeservers.Redis(t)
	s := newStore(t, server.URL, nil)
	server.Stop()
	defer server.Cont()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	err := s.Subscribe(ctx, []string{"c"}, func(string, []byte) {})
	if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 500*time.Millisecond {
		t.Errorf("Subscribe returned %v after %v", err, took)
	}
}

// TestErrorsQuoteNothing: an unknown command is answered with its arguments.
func TestErrorsQuoteNothing(t *testing.T) {
	server := storeservers.Redis(t, "--rename-command", "SET", "OTHER")
	s := newStore(t, server.URL, nil)
	err := s.Put(t.Context(), "secret-key", []byte("secret-value"), time.Hour)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got the error %v", err)
	}
}

// A proxy stands between a client and the server. It passes left bytes of
// requests, then cuts; while mute, it cuts instead of passing an answer.
type proxy struct {
	addr string
	left atomic.Int64
	mute atomic.Bool
}

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{addr: l.Addr().String()}
	p.left.Store(1 << 40)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) pass(client, server net.Conn) {
	go func() {
		defer client.Close()
		defer server.Close()
		buf := make([]byte, 4096)
		for {
			n, err := server.Read(buf)
			if err != nil || p.mute.CompareAndSwap(true, false) {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	defer client.Close()
	buf := make([]byte, 4096)
	for {
		n, err := client.Read(buf)
		if err != nil {
			_ = server.Close()
			return
		}
		pass := min(int64(n), p.left.Add(-int64(n))+int64(n))
		if pass > 0 {
			_, _ = server.Write(buf[:pass])
		}
		if pass < int64(n) {
			// What was passed is carried out; its answers are not waited for.
			time.Sleep(5 * time.Millisecond)
			_ = server.(*net.TCPConn).CloseWrite()
			return
		}
	}
}
