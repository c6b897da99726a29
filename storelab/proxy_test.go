//go:build unix

package storelab

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A wire is a TCP proxy between a replica and a server, by which a test cuts
// connections, holds back what was sent, and makes the way long.
type wire struct {
	addr   string
	server string
	delay  time.Duration // one way
	deaf   atomic.Bool   // what the server answers ends the connection instead

	refused atomic.Pointer[string] // what a client sends ends the connection instead if it holds this

	mu    sync.Mutex // guards all below
	conns map[net.Conn]struct{}
	held  chan struct{} // closed when what is held back may go on; nil: nothing is
}

func newWire(t testing.TB, server string, delay time.Duration) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), server: server, delay: delay, conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() { l.Close(); w.release(); w.cut() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go w.connect(client)
		}
	}()
	return w
}

func (w *wire) connect(client net.Conn) {
	server, err := net.DialTimeout("tcp", w.server, time.Second)
	if err != nil {
		reset(client)
		return
	}
	w.mu.Lock()
	w.conns[client], w.conns[server] = struct{}{}, struct{}{}
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pump(server, client, true) })
	both.Go(func() { w.pump(client, server, false) })
	both.Wait()
	w.mu.Lock()
	delete(w.conns, client)
	delete(w.conns, server)
	w.mu.Unlock()
}

// A chunk is what was read at once, and when it may arrive.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries bytes one way. What was read is delivered also when its sender
// has gone: a request that a client gave up on is still on its way.
func (w *wire) pump(to, from net.Conn, request bool) {
	queue := make(chan chunk, 1024)
	var sent sync.WaitGroup
	sent.Go(func() {
		for c := range queue {
			time.Sleep(time.Until(c.due))
			if request {
				w.wait()
				if bad := w.refused.Load(); bad != nil && bytes.Contains(c.data, []byte(*bad)) {
					reset(to)
					reset(from)
				}
			} else if w.deaf.Load() {
				reset(to)
				reset(from)
			}
			_, _ = to.Write(c.data) // an error ends the other direction too
		}
		if request {
			// Half closed, so that the server reads to the end first.
			_ = to.(*net.TCPConn).CloseWrite()
		} else {
			_ = to.Close()
		}
	})
	for {
		b := make([]byte, 32<<10)
		n, err := from.Read(b)
		if n > 0 {
			queue <- chunk{b[:n], time.Now().Add(w.delay)}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	sent.Wait()
}

// hold keeps back what clients send from now on. Connections stay up, and so do
// those of others: what is held arrives later than what they send.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = make(chan struct{})
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

func (w *wire) wait() {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
}

// cut breaks every connection.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		reset(c)
	}
}

// reset closes a connection so that the other end gets an error, not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
