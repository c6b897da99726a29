package sessionshare

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// say sends a log message outside a call.
func (n *node) say(t *testing.T, sid, what string) error {
	return n.hosts(t, sid).session.Log(context.Background(), &mcp.LoggingMessageParams{Level: "error", Data: what})
}

// changed makes the server of a copy say that its tools have changed.
func (n *node) changed(t *testing.T, sid string) {
	n.hosts(t, sid).server.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text(""), nil })
}

func (n *node) updated(t *testing.T, sid, uri string) {
	_ = n.hosts(t, sid).server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: uri})
}

// said returns what log messages have come, in order.
func (p *pending) said() (out []string) {
	for _, m := range p.messages() {
		if m.Method == "notifications/message" {
			out = append(out, m.param("data"))
		}
	}
	return out
}

func (p *pending) count(method string) (n int) {
	for _, m := range p.methods() {
		if m == method {
			n++
		}
	}
	return n
}

// listening opens a session that logs errors, hosted everywhere.
func listening(t *testing.T, c *cluster) string {
	sid := c.nodes[0].openAsking(t)
	c.nodes[0].ok(t, sid, levelBody("error"))
	c.nodes[0].ok(t, sid, subscribeBody("u"))
	c.everywhere(sid)
	time.Sleep(testRecheck)
	c.everywhere(sid)
	return sid
}

const toolsChanged = "notifications/tools/list_changed"
const resourceUpdated = "notifications/resources/updated"

// What any copy says outside a call arrives once on the client's stream, wherever
// that is, and what one replica says in the order in which it says it.
func TestStreamIsWhereverItIs(t *testing.T) {
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		for _, holder := range c.nodes {
			stream := holder.stream(sid)
			time.Sleep(50 * time.Millisecond)
			for i, n := range c.nodes {
				before := stream.count(toolsChanged)
				for j := range 5 {
					require.NoError(t, n.say(t, sid, fmt.Sprint(i, j)))
					n.updated(t, sid, "u")
				}
				require.NoError(t, n.hosts(t, sid).session.NotifyProgress(context.Background(), &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: float64(i)}))
				n.changed(t, sid)
				time.Sleep(50 * time.Millisecond)
				require.Equal(t, before+1, stream.count(toolsChanged), "replica %d", i)
				require.Equal(t, i+1, stream.count("notifications/progress"))
				said := stream.said()
				require.Equal(t, []string{fmt.Sprint(i, 0), fmt.Sprint(i, 1), fmt.Sprint(i, 2), fmt.Sprint(i, 3), fmt.Sprint(i, 4)}, said[5*i:])
				time.Sleep(2 * mergeWindow)
			}
			updates := stream.count(resourceUpdated)
			require.GreaterOrEqual(t, updates, 3)
			require.LessOrEqual(t, updates, 6, "bursts are merged")
			stream.cancel()
			time.Sleep(time.Second)
		}
		require.Empty(t, c.backend.keys(".out."), "what has arrived is deleted")
	})
}

// A notification that says no more than "look again" comes before what its replica
// says later.
func TestOrderOfKinds(t *testing.T) {
	onOne(t, 2, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid)
		time.Sleep(50 * time.Millisecond)
		for range 3 {
			c.nodes[1].updated(t, sid, "u")
			require.NoError(t, c.nodes[1].say(t, sid, "later"))
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{resourceUpdated, "notifications/message", resourceUpdated, "notifications/message",
			resourceUpdated, "notifications/message"}, stream.methods())
		stream.cancel()
	})
}

// The same change on three replicas is one or two notifications, never none, also
// when it comes again and again; the last one is never lost.
func TestBurstOfChanges(t *testing.T) {
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		stream := c.nodes[1].stream(sid)
		time.Sleep(50 * time.Millisecond)
		for round := range 5 {
			before := stream.count(resourceUpdated)
			for _, n := range c.nodes {
				n.updated(t, sid, "u")
			}
			time.Sleep(50 * time.Millisecond)
			require.Greater(t, stream.count(resourceUpdated), before, "at once, round %d", round)
			time.Sleep(2 * time.Second)
			require.LessOrEqual(t, stream.count(resourceUpdated), before+2)
		}
		before := stream.count(resourceUpdated)
		for range 30 {
			c.nodes[2].updated(t, sid, "u")
			time.Sleep(100 * time.Millisecond)
		}
		came := stream.count(resourceUpdated)
		require.InDelta(t, 7, came-before, 1)
		time.Sleep(mergeWindow)
		require.Equal(t, came+1, stream.count(resourceUpdated), "the last ones are not lost")
		stream.cancel()
	})
}

// Without hints what is said where the stream is not fails at once, and visibly.
func TestStreamWithoutHints(t *testing.T) {
	onOne(t, 2, storeKinds[1], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		c.nodes[1].ok(t, sid, levelBody("error"))
		stream := c.nodes[0].stream(sid)
		time.Sleep(time.Minute)
		began := time.Now()
		require.Error(t, c.nodes[1].say(t, sid, "lost"))
		require.Equal(t, began, time.Now())
		require.NoError(t, c.nodes[0].say(t, sid, "here"))
		require.Equal(t, []string{"here"}, stream.said())
		stream.cancel()
	})
}

// A client that drops its stream, cleanly or not, and reconnects anywhere has its
// messages again at once; the older stream ends, and the client never sees an
// error.
func TestStreamMoves(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		c.nodes[1].ok(t, sid, levelBody("error"))
		c.nodes[2].ok(t, sid, levelBody("error"))
		for i, at := range []int{0, 1, 1, 2, 0} {
			old := c.nodes[at].stream(sid)
			time.Sleep(11 * time.Second)
			if i%2 == 0 {
				old.cancel()
			}
			next := c.nodes[(at+i)%3]
			stream := next.stream(sid)
			time.Sleep(50 * time.Millisecond)
			for j, n := range c.nodes {
				if k.hinted || n == next {
					require.NoError(t, n.say(t, sid, fmt.Sprint(j)), "from %d", at)
				}
			}
			time.Sleep(50 * time.Millisecond)
			if k.hinted {
				require.ElementsMatch(t, []string{"0", "1", "2"}, stream.said(), "from %d to %d", at, (at+i)%3)
			} else {
				require.Len(t, stream.said(), 1)
			}
			until(t, busyRecheck+2*time.Second, "the older stream ends", old.ended)
			require.False(t, stream.ended())
			status, body := stream.w.result()
			require.Equal(t, 200, status)
			require.True(t, strings.HasPrefix(body, "id: ~"), body)
			stream.cancel()
			time.Sleep(11 * time.Second)
		}
	})
}

// Two streams that a client holds open on two replicas, and opens again whenever
// one ends, do not chase each other fast.
func TestStreamsDoNotChase(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := listening(t, c)
		ctx, cancel := context.WithCancel(context.Background())
		opened := make([]int, 2)
		var wg sync.WaitGroup
		for i, n := range c.nodes {
			n.view.set(func(storeCall) fault { return fault{delay: time.Millisecond} }) // or no time passes
			wg.Go(func() {
				for ctx.Err() == nil {
					n.ServeHTTP(newSafeRecorder(), newRequest(http.MethodGet, sid, "").WithContext(ctx))
					opened[i]++
				}
			})
		}
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
		assert.Less(t, opened[0]+opened[1], 40)
	})
}

// A peer is a client whose connection takes writes, or hangs, or fails.
type peer struct {
	*safeRecorder
	mu   sync.Mutex // guards all below
	err  error
	hang chan struct{} // closed when a deadline has passed; nil: it does not hang
	set  chan time.Time
}

func (p *peer) Write(b []byte) (int, error) {
	p.mu.Lock()
	err, hang := p.err, p.hang
	p.mu.Unlock()
	if hang != nil {
		var over <-chan time.Time
		for {
			select {
			case deadline := <-p.set:
				over = nil
				if !deadline.IsZero() {
					over = time.After(time.Until(deadline))
				}
			case <-over:
				return 0, errors.New("i/o timeout")
			}
		}
	}
	if err != nil {
		return 0, err
	}
	return p.safeRecorder.Write(b)
}

func (p *peer) SetWriteDeadline(d time.Time) error {
	select {
	case p.set <- d:
	default:
	}
	return nil
}

// A silent stream is kept through proxies by comments; one whose peer has vanished
// ends, and no longer keeps the session alive.
func TestHeartbeats(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		n := c.nodes[0]
		sid := n.openAsking(t)
		p := &peer{safeRecorder: newSafeRecorder(), set: make(chan time.Time, 16)}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.ServeHTTP(p, newRequest(http.MethodGet, sid, "").WithContext(ctx))
		}()
		time.Sleep(2*testIdle + time.Second)
		require.Equal(t, 200, n.list(sid), "a stream keeps the session alive")
		_, body := p.result()
		require.InDelta(t, int(2*testIdle/DefaultStreamHeartbeat), strings.Count(body, ": \n\n"), 1)
		p.mu.Lock()
		p.err = errors.New("connection reset")
		p.mu.Unlock()
		time.Sleep(DefaultStreamHeartbeat + time.Second)
		select {
		case <-done:
		default:
			require.Fail(t, "the stream goes on")
		}
		time.Sleep(testIdle + testTouch)
		require.Equal(t, 404, n.list(sid))
	})
}

// A peer whose connection is stuck holds up neither a newer stream nor anything
// else for longer than a heartbeat.
func TestStuckPeer(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		n := c.nodes[0]
		sid := listening(t, c)
		p := &peer{safeRecorder: newSafeRecorder(), set: make(chan time.Time, 1)}
		go n.ServeHTTP(p, newRequest(http.MethodGet, sid, ""))
		time.Sleep(time.Second)
		p.mu.Lock()
		p.hang = make(chan struct{})
		p.mu.Unlock()
		go n.say(t, sid, "into the void")
		time.Sleep(2 * time.Second)
		stream := n.stream(sid)
		time.Sleep(time.Second)
		require.NoError(t, n.say(t, sid, "x"))
		require.Equal(t, []string{"x"}, stream.said())
		stream.cancel()

		p = &peer{safeRecorder: newSafeRecorder(), set: make(chan time.Time, 1)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.ServeHTTP(p, newRequest(http.MethodGet, sid, ""))
		}()
		time.Sleep(time.Second)
		p.mu.Lock()
		p.hang = make(chan struct{})
		p.mu.Unlock()
		go n.say(t, sid, "into the void")
		select {
		case <-done:
		case <-time.After(DefaultStreamHeartbeat + time.Second):
			require.Fail(t, "the stream goes on")
		}
	})
}
