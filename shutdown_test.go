package sessionshare

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Drain ends streams, old and new, and lets calls go on as ever.
func TestDrainEndsStreamsNotCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		call, stream := a.call(sid, "slow"), a.stream(sid)
		a.Drain()
		require.True(t, stream.ended(), "streams end at once")
		require.False(t, call.ended(), "calls go on")
		late := a.stream(sid)
		require.True(t, late.ended(), "a new stream ends at once")
		status, body := late.result()
		assert.Equal(t, 200, status)
		assert.Regexp(t, `^id: ~[^\n]+\n\n$`, body, "with its first block")
		assert.Equal(t, 200, a.list(sid), "the load balancer still sends calls")
		assert.NotEmpty(t, a.open(t), "and opens")
		assert.Equal(t, 200, b.list(sid))
		a.letGo()
		status, body = call.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "done")
	})
}

// Shutdown waits for running calls, refuses new ones, and closes no session.
func TestShutdownWaitsForCallsAndClosesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		call, stream := a.call(sid, "slow"), a.stream(sid)
		done := make(chan error, 1)
		go func() { done <- a.Shutdown(context.Background()) }()
		require.True(t, stream.ended())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, done, "Shutdown waits for the call")
		w := a.post(sid, toolBody("echo"))
		assert.Equal(t, 503, w.Code, "a new call is refused")
		assert.Equal(t, "1", w.Header().Get("Retry-After"))
		assert.Equal(t, 202, a.post(sid, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`).Code,
			"what a running call may wait for still comes in")
		w = a.post("", initBody)
		assert.Equal(t, 503, w.Code, "no session opens")
		a.letGo()
		require.NoError(t, <-done)
		status, body := call.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "done")

		assert.Equal(t, 503, a.list(sid), "from then on 503, not 404")
		assert.Equal(t, 503, a.delete(sid))
		get := a.do("GET", sid, "")
		assert.Equal(t, 200, get.Code, "a GET gets the block and a clean end")
		assert.Contains(t, get.Body.String(), "id: ~")
		assert.Empty(t, c.backend.keys("closed."), "rule 6: shutdown writes no mark")
		assert.Len(t, c.backend.keys("session."), 1)
		assert.Equal(t, 200, b.list(sid), "the session lives on")
		assert.Zero(t, a.Stats().Hosted)
		require.NoError(t, a.Shutdown(context.Background()), "Shutdown may be called again")
	})
}

// Shutdown whose time is over cancels the calls that are left, and their clients
// get an answer.
func TestShutdownCancelsWhatIsLeft(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		call := a.call(sid, "slow")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		began := time.Now()
		_ = a.Shutdown(ctx)
		assert.Equal(t, 5*time.Second, time.Since(began))
		require.True(t, call.ended(), "the call was cancelled")
		status, body := call.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, `"error"`, "a call that is cut gets an error, not an empty 200")
	})
}

// A tool that does not obey its context cannot hold Shutdown beyond its ctx.
func TestShutdownIsBoundedByItsContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		call := a.call(sid, "deaf")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, a.Shutdown(ctx), context.DeadlineExceeded)
		a.letGo()
		call.result()
		require.NoError(t, a.Shutdown(context.Background()), "now everything has ended")
	})
}

// A stream that waits and a message that is held are sent away by Shutdown.
func TestShutdownReleasesWhatIsHeld(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		get := b.start("GET", sid, "")
		note := b.start("POST", sid, greetBody)
		time.Sleep(time.Second)
		require.False(t, get.ended())
		require.False(t, note.ended())
		require.NoError(t, b.Shutdown(context.Background()))
		require.True(t, get.ended())
		require.True(t, note.ended())
		status, _ := get.result()
		assert.Equal(t, 200, status)
		status, _ = note.result()
		assert.Equal(t, 503, status)
	})
}

// The cause of a copy's end reaches what the host has started for it.
func TestSessionContextCauses(t *testing.T) {
	for name, tc := range map[string]struct {
		end   func(c *cluster, sid string)
		cause error
	}{
		"DELETE":       {func(c *cluster, sid string) { c.nodes[0].delete(sid) }, ErrClosed},
		"CloseSession": {func(c *cluster, sid string) { _ = c.nodes[0].CloseSession(context.Background(), sid) }, ErrClosed},
		"closed elsewhere": {func(c *cluster, sid string) {
			c.nodes[1].delete(sid)
			time.Sleep(testRecheck)
			c.nodes[0].list(sid)
		}, ErrClosed},
		"eviction": {func(c *cluster, _ string) { time.Sleep(2 * time.Minute) }, ErrEvicted},
		"shutdown": {func(c *cluster, _ string) { _ = c.nodes[0].Shutdown(context.Background()) }, ErrShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				got := make(chan *Session, 1)
				c := newCluster(t, 2, func(cfg *nodeConfig) {
					cfg.opts.EvictAfter = time.Minute
					spyFactory(cfg, func(s *Session) {
						select {
						case got <- s:
						default:
						}
					})
				})
				sid := c.nodes[0].open(t)
				s := <-got
				require.NoError(t, s.Context().Err())
				tc.end(c, sid)
				synctest.Wait()
				require.ErrorIs(t, context.Cause(s.Context()), tc.cause)
			})
		})
	}
}
