//go:build unix

package storelab

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// How many clients there are. All go on all the time.
const (
	busyClients  = 12 // one session each, round robin
	sleepers     = 60 // sessions that are used now and then, so that replicas must resume them
	wakers       = 4
	churners     = 4 // open, use and delete
	ghosts       = 1 // uses what was deleted
	keptSessions = 60
)

// A cluster is three replicas over one store, and its clients.
type cluster struct {
	*ledger
	replicas []*replica
	slow     bool // the store bears a third of the sessions
	clients  sync.WaitGroup
}

func (c *cluster) request(kind string, s *session, i int, method, body string) int {
	ctx := context.Background()
	if method == http.MethodGet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
	}
	i %= len(c.replicas)
	began := time.Now()
	w := c.replicas[i].do(ctx, method, s.id, body)
	c.judge(kind, s, i, began, w)
	return w.Code
}

func (c *cluster) open(i int) *session {
	i %= len(c.replicas)
	began := time.Now()
	w := c.replicas[i].do(context.Background(), http.MethodPost, "", initBody)
	s := c.opened(i, began, w)
	if s != nil {
		c.request("note", s, i+1, http.MethodPost, initedMs)
	}
	return s
}

// start opens the sessions and starts the clients, which end with ctx.
func (c *cluster) start(t *testing.T, ctx context.Context) {
	for n := range busyClients {
		s := c.open(n)
		if s == nil {
			t.Fatal(c.violations)
		}
		for i := range c.replicas {
			c.request("call", s, i, http.MethodPost, listTools())
		}
		s.hosted = true
		c.clients.Go(func() { c.busy(ctx, s) })
	}
	asleep, churn := make([]*session, sleepers), churners
	if c.slow || !*write {
		asleep, churn = asleep[:sleepers/3], churners/2
	}
	for n := range asleep {
		if asleep[n] = c.open(n); asleep[n] == nil {
			t.Fatal(c.violations)
		}
	}
	for range wakers {
		c.clients.Go(func() {
			for pause(ctx, 40*time.Millisecond) {
				c.request("call", asleep[rand.N(len(asleep))], rand.N(3), http.MethodPost, listTools())
			}
		})
	}
	for range churn {
		c.clients.Go(func() { c.churn(ctx) })
	}
	for range ghosts {
		c.clients.Go(func() {
			for pause(ctx, 5*time.Millisecond) {
				if s := c.pick(func(s *session) bool { return !s.closed.IsZero() }, rand.N(10000)); s != nil {
					c.request("call", s, rand.N(3), http.MethodPost, listTools())
				}
			}
		})
	}
}

func (c *cluster) busy(ctx context.Context, s *session) {
	for n := 0; pause(ctx, 20*time.Millisecond); n++ {
		switch {
		case n%20 == 19:
			c.request("stream", s, n, http.MethodGet, "")
		case n%11 == 10:
			c.request("note", s, n, http.MethodPost, rootsMsg)
		case n%7 == 6:
			c.request("upstream", s, n, http.MethodPost, upstream())
		default:
			c.request("call", s, n, http.MethodPost, listTools())
		}
	}
}

func (c *cluster) churn(ctx context.Context) {
	for n, kept := rand.N(3), 0; pause(ctx, 30*time.Millisecond); n++ {
		s := c.open(n)
		if s == nil {
			continue
		}
		for k := range 4 {
			c.request("call", s, n+k, http.MethodPost, listTools())
			pause(ctx, 10*time.Millisecond)
		}
		if n%4 == 0 && kept < keptSessions/churners {
			kept++
			continue
		}
		c.close(s, rand.N(3))
	}
}

// close sends DELETEs, also beyond the end of the traffic, until one is answered
// 204, or until no replica knows the session.
func (c *cluster) close(s *session, i int) {
	c.mu.Lock()
	s.deleting = true
	c.mu.Unlock()
	for unknown, began := 0, time.Now(); time.Since(began) < time.Minute; i++ {
		switch c.request("delete", s, i, http.MethodDelete, "") {
		case http.StatusNoContent:
			c.closedBy(s, i%len(c.replicas))
			return
		case http.StatusNotFound:
			if unknown++; unknown == len(c.replicas) {
				c.closedBy(s, -1)
				return
			}
		default:
			unknown = 0
			time.Sleep(150 * time.Millisecond)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violated("a session could not be deleted for a minute")
}

// pause waits and reports whether the traffic goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
