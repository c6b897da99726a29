package sessionshare

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// Handlers that are slow, ask the client, or keep data with the session hold up
// nobody for ever: neither where they are called for the client, nor where its
// request is replayed.
func TestStateHandlersThatTakeTheirTime(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	slow := func(cfg *nodeConfig) {
		cfg.server.SubscribeHandler = func(ctx context.Context, req *mcp.SubscribeRequest) error {
			mu.Lock()
			asked[req.Params.URI]++
			mu.Unlock()
			switch req.Params.URI {
			case "data":
				s, _ := SessionFromContext(ctx)
				_, _, err := s.LoadOrStore(ctx, "upstream", []byte("x"))
				if cfg.plain {
					return nil
				}
				return err
			case "ask":
				_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "may I?"})
				return err
			case "slow":
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Minute):
				}
			}
			return nil
		}
	}
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		a.ok(t, sid, subscribeBody("data"))
		call := a.start(http.MethodPost, sid, subscribeBody("ask"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		require.Equal(t, 202, b.post(sid, answer(q)).Code)
		require.NotContains(t, call.finished(t, k.answerTime()), `"error"`)
		k.settle(c, sid)
		soon(t, func() { b.ok(t, sid, levelBody("debug")) }) // its replay asks nobody
		a.ok(t, sid, subscribeBody("slow"))
		for range 6 {
			began := time.Now()
			require.Equal(t, 200, b.list(sid))
			require.LessOrEqual(t, time.Since(began), DefaultStoreTimeout, "a request waits for a slow replay")
			time.Sleep(testRecheck)
		}
		time.Sleep(2 * factoryTime)
		soon(t, func() { b.ok(t, sid, levelBody("info")) })
		require.Contains(t, b.log.String(), "replaying state failed")
		late := c.add()
		until(t, time.Minute, "resumed", func() bool { return late.list(sid) == 200 })
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"data": 3, "ask": 3, "slow": 3}, asked)
		clear(asked)
	}, slow)
}

// soon checks that f holds nobody up.
func soon(t *testing.T, f func()) {
	t.Helper()
	began := time.Now()
	f()
	require.Less(t, time.Since(began), time.Second)
}

// What others have noted while a replica was busy with a setting is not forgotten,
// also if nothing came of that.
func TestHintDuringSetting(t *testing.T) {
	slow := func(cfg *nodeConfig) {
		before := cfg.server.SubscribeHandler
		cfg.server.SubscribeHandler = func(ctx context.Context, req *mcp.SubscribeRequest) error {
			if req.Params.URI == "refused" {
				time.Sleep(time.Second)
			}
			return before(ctx, req)
		}
	}
	onOne(t, 2, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[1].start(http.MethodPost, sid, subscribeBody("refused"))
		time.Sleep(10 * time.Millisecond)
		c.nodes[0].ok(t, sid, subscribeBody("fast"))
		require.Contains(t, call.finished(t, 2*time.Second), `"error"`)
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"subscribe fast"}, told.get(c.nodes[1]))
	}, slow)
}
