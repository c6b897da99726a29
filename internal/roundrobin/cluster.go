package roundrobin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// A Node is what one replica of a Cluster serves.
type Node struct {
	Handler http.Handler

	// Stop ends what the node runs besides its handler. Cluster.Stop calls it when
	// the HTTP server has shut down, Cluster.Kill with a context that is over. Nil
	// means that there is nothing to end.
	Stop func(context.Context) error
}

// A Cluster is a number of replicas on loopback ports behind a Proxy, all in this
// process. A replica can be stopped or killed, and started again on its port.
type Cluster struct {
	Proxy *Proxy

	newNode  func(i int) (Node, error)
	log      *slog.Logger
	front    *http.Server
	url      string
	replicas []*replica
}

// A replica is one slot of a Cluster.
type replica struct {
	addr string

	mu     sync.Mutex // guards what runs in the slot; both nil: nothing
	node   *Node
	server *http.Server
}

// Start starts n replicas, made by newNode, and a proxy in front of them.
func Start(n int, opts Options, newNode func(i int) (Node, error)) (*Cluster, error) {
	c := &Cluster{Proxy: New(opts), newNode: newNode, log: opts.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for i := range n {
		c.replicas = append(c.replicas, &replica{addr: "127.0.0.1:0"})
		if err := c.Restart(i); err != nil {
			c.Close()
			return nil, err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("roundrobin: the proxy cannot listen: %w", err)
	}
	c.url = "http://" + l.Addr().String()
	c.front = c.serve(l, c.Proxy)
	return c, nil
}

// URL is that of the proxy, without a slash at its end.
func (c *Cluster) URL() string { return c.url }

// ReplicaURL is that of one replica, for what is not meant to be balanced.
func (c *Cluster) ReplicaURL(i int) string { return "http://" + c.replicas[i].addr }

// Restart starts a replica where none runs: a new node, on the port the slot had.
func (c *Cluster) Restart(i int) error {
	r := c.replicas[i]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server != nil {
		return fmt.Errorf("roundrobin: replica %d runs", i)
	}
	l, err := listenAgain(r.addr)
	if err != nil {
		return fmt.Errorf("roundrobin: replica %d cannot listen: %w", i, err)
	}
	node, err := c.newNode(i)
	if err != nil {
		return errors.Join(fmt.Errorf("roundrobin: replica %d: %w", i, err), l.Close())
	}
	r.addr, r.node = l.Addr().String(), &node
	r.server = c.serve(l, node.Handler)
	c.Proxy.Add(r.addr)
	return nil
}

// Kill ends a replica as a crash would: connections break, running calls are not
// waited for, and the proxy finds out by itself. Killing a dead one is no error.
func (c *Cluster) Kill(i int) {
	node, server := c.replicas[i].take()
	if server == nil {
		return
	}
	_ = server.Close()
	// The process lives on, so what the node runs must be ended, at once.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = node.stop(over)
}

// Stop ends a replica as a deploy does: out of the rotation, then the server
// shuts down, then the node. It returns what went wrong, such as ctx.Err().
func (c *Cluster) Stop(ctx context.Context, i int) error {
	node, server := c.replicas[i].take()
	if server == nil {
		return nil
	}
	c.Proxy.Remove(c.replicas[i].addr)
	err := server.Shutdown(ctx)
	if err != nil {
		_ = server.Close()
	}
	return errors.Join(err, node.stop(ctx))
}

// Close ends all that the Cluster has started. It may be called again.
func (c *Cluster) Close() {
	if c.front != nil {
		_ = c.front.Close()
	}
	for i := range c.replicas {
		c.Kill(i)
	}
	c.Proxy.Close()
}

func (r *replica) take() (*Node, *http.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node, server := r.node, r.server
	r.node, r.server = nil, nil
	return node, server
}

func (n *Node) stop(ctx context.Context) error {
	if n.Stop == nil {
		return nil
	}
	return n.Stop(ctx)
}

func (c *Cluster) serve(l net.Listener, h http.Handler) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	go func() { _ = s.Serve(l) }()
	return s
}

// listenAgain listens on addr, which may have been left a moment ago.
func listenAgain(addr string) (net.Listener, error) {
	for try := 0; ; try++ {
		l, err := net.Listen("tcp", addr)
		if err == nil || try == 50 || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
