package sessionshare

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func levelBody(level string) string {
	return callBody("logging/setLevel", `{"level":"`+level+`"}`)
}

func subscribeBody(uri string) string { return callBody("resources/subscribe", `{"uri":"`+uri+`"}`) }

func unsubscribeBody(uri string) string {
	return callBody("resources/unsubscribe", `{"uri":"`+uri+`"}`)
}

const rootsBody = `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`

// ok sends a request that must succeed.
func (n *node) ok(t *testing.T, sid, body string) {
	t.Helper()
	w := n.post(sid, body)
	require.Equal(t, 200, w.Code, w.Body.String())
	require.NotContains(t, w.Body.String(), `"error"`)
}

// settle waits until what one replica knows all others know: at once on a hint,
// else with a request after RecheckInterval.
func (k storeKind) settle(c *cluster, sid string) {
	if k.hinted {
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		return
	}
	time.Sleep(testRecheck)
	for _, n := range c.nodes {
		require.Equal(c.t, 200, n.list(sid))
	}
	synctest.Wait()
}

// logs reports whether a copy sends messages of this level to its client.
func (n *node) logs(t *testing.T, sid, level string) bool {
	w := n.post(sid, askBody("log", level))
	require.Equal(t, 200, w.Code)
	return strings.Contains(w.Body.String(), "notifications/message")
}

// What a client sets on one replica holds on all, through the server's own
// handlers, on copies that exist and on those that are made later.
func TestStateHoldsEverywhere(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		c.nodes[0].ok(t, sid, levelBody("info"))
		c.nodes[1].ok(t, sid, subscribeBody("a:1"))
		require.Equal(t, 202, c.nodes[2].post(sid, rootsBody).Code)
		k.settle(c, sid)
		for _, n := range c.nodes {
			assert.ElementsMatch(t, []string{"subscribe a:1", "roots"}, told.get(n))
			assert.True(t, n.logs(t, sid, "info"))
			assert.False(t, n.logs(t, sid, "debug"))
		}
		c.nodes[2].ok(t, sid, levelBody("error"))
		c.nodes[2].ok(t, sid, unsubscribeBody("a:1"))
		c.nodes[2].ok(t, sid, subscribeBody("b:2"))
		k.settle(c, sid)
		k.settle(c, sid)
		late := c.add()
		require.Equal(t, 200, late.list(sid))
		c.nodes[0].hosts(t, sid).end(ErrEvicted)
		require.Equal(t, 200, c.nodes[0].list(sid))
		for i, n := range c.nodes {
			want := []string{"unsubscribe a:1", "subscribe b:2"}
			switch i {
			case 0:
				want = append(want, "subscribe b:2", "roots") // a copy that was made anew
			case 3:
				want = []string{"subscribe b:2", "roots"}
			}
			assert.ElementsMatch(t, want, told.get(n), "replica %d", i)
			assert.False(t, n.logs(t, sid, "info"))
			assert.True(t, n.logs(t, sid, "error"))
		}
	})
}

// Replicas that subscribe at once lose nothing, however the store interleaves
// them, and whoever is slow.
func TestSubscribingAtOnce(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		c.nodes[0].view.set(func(call storeCall) fault {
			if call.about(".state.") && call.write() {
				return fault{delay: 1900 * time.Millisecond} // reads, then others write, then it writes
			}
			return fault{}
		})
		var calls []*pending
		for i := range 9 {
			calls = append(calls, c.nodes[i%3].start(http.MethodPost, sid, subscribeBody(fmt.Sprint("u:", i))))
		}
		for _, p := range calls {
			require.NotContains(t, p.finished(t, 10*time.Second), "error")
		}
		if k.hinted {
			// A merge is one step: what was answered is there, whoever dies now.
			for _, n := range c.nodes {
				n.hosts(t, sid).end(ErrEvicted)
			}
		}
		time.Sleep(2 * time.Second)
		c.nodes[0].view.heal()
		time.Sleep(10 * time.Second) // nobody asks; the sweepers see to it
		late := c.add()
		require.Equal(t, 200, late.list(sid))
		require.Len(t, told.get(late), 9)
	})
}

// A copy whose client has set nothing on it has what was set elsewhere as soon:
// also where reading it costs the store a call of its own.
func TestStateReachesCopiesThatSetNothing(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		for i := range 3 {
			uri := fmt.Sprint("u:", i)
			c.nodes[0].ok(t, sid, subscribeBody(uri))
			k.settle(c, sid)
			require.Contains(t, told.get(c.nodes[1]), "subscribe "+uri)
		}
	})
}

// On a store that cannot swap, who has written looks again when nobody who read
// before still writes: what came late, from a replica that is gone since, is mended.
func TestLateOverwrite(t *testing.T) {
	onOne(t, 2, storeKinds[1], func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		c.nodes[0].view.delayWrites(3500*time.Millisecond, func(call storeCall) bool { return call.about(".state.") })
		c.nodes[0].ok(t, sid, subscribeBody("late"))
		c.nodes[1].ok(t, sid, subscribeBody("early"))
		c.nodes[0].hosts(t, sid).end(ErrEvicted)
		time.Sleep(10 * time.Second)
		late := c.add()
		require.Equal(t, 200, late.list(sid))
		require.ElementsMatch(t, []string{"subscribe early", "subscribe late"}, told.get(late))
	})
}

// What one replica has unsubscribed, one that was slow, or resumes the session,
// does not bring back.
func TestUnsubscribeStays(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		c.nodes[0].ok(t, sid, subscribeBody("u"))
		c.nodes[1].ok(t, sid, unsubscribeBody("u"))
		k.settle(c, sid)
		c.nodes[2].hosts(t, sid).end(ErrEvicted)
		c.nodes[0].hosts(t, sid).lookSoon()
		k.settle(c, sid)
		k.settle(c, sid)
		last := func(n *node) string {
			all := append([]string{"unsubscribe u"}, told.get(n)...)
			return all[len(all)-1]
		}
		for i, n := range c.nodes {
			assert.Equal(t, "unsubscribe u", last(n), "replica %d", i)
		}
		late := c.add()
		require.Equal(t, 200, late.list(sid))
		assert.Empty(t, told.get(late))
	})
}

// A setting counts though the store is away, is written when it is back, and wins
// over an earlier one that its replica could not know.
func TestStateWhileTheStoreIsAway(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, told *told) {
		for i := range 8 { // a version that is too low would win every second time
			sid := c.nodes[0].openAsking(t)
			c.everywhere(sid)
			uri := fmt.Sprint("u:", i)
			c.nodes[0].ok(t, sid, subscribeBody(uri))
			time.Sleep(time.Second)
			c.nodes[1].view.down()
			c.nodes[1].ok(t, sid, subscribeBody("v"))
			c.nodes[1].ok(t, sid, unsubscribeBody(uri))
			time.Sleep(5 * time.Second)
			c.nodes[1].view.heal()
			time.Sleep(15 * time.Second)
			late := c.add()
			require.Equal(t, 200, late.list(sid))
			require.Equal(t, []string{"subscribe v"}, told.get(late), "round %d", i)
		}
	})
}

// A state key that the store has lost is written again by who knows it.
func TestLostState(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.nodes[0].ok(t, sid, subscribeBody("u"))
		time.Sleep(10 * time.Second)
		c.backend.lose(".state.")
		time.Sleep(testRecheck)
		require.Equal(t, 200, c.nodes[0].list(sid))
		require.Len(t, c.backend.keys(".state."), 1)
		require.Equal(t, 200, c.nodes[1].list(sid))
		require.Equal(t, []string{"subscribe u"}, told.get(c.nodes[1]))
	})
}

// The state lives as long as the record, and no longer.
func TestStateLivesWithTheRecord(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.nodes[0].ok(t, sid, subscribeBody("u"))
		for range 10 {
			time.Sleep(testIdle / 5)
			require.Equal(t, 200, c.nodes[0].list(sid))
		}
		require.Len(t, c.backend.keys(".state."), 1)
		require.Equal(t, 204, c.nodes[1].delete(sid))
		synctest.Wait()
		require.Empty(t, c.backend.keys(".state."))
		sid = c.nodes[0].openAsking(t)
		c.nodes[0].ok(t, sid, subscribeBody("u"))
		time.Sleep(testIdle + testTouch)
		require.Empty(t, c.backend.keys("."+string(digestOf(sid))))
	})
}

// What a handler refuses is not noted.
func TestRefusedStateIsNotNoted(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		w := c.nodes[0].post(sid, subscribeBody("refused"))
		require.Contains(t, w.Body.String(), `"error"`)
		k.settle(c, sid)
		require.Empty(t, c.backend.keys(".state."))
		require.NotContains(t, c.nodes[1].log.String(), "replaying state failed")
	})
}

// Replays, and looks on hints, are no activity: a session that its client has left
// ends on time.
func TestReplaysAreNoActivity(t *testing.T) {
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		for range int(testIdle / time.Minute) {
			time.Sleep(time.Minute)
			c.nodes[0].hints.publish(context.Background(), "", hintLook, string(digestOf(sid)))
		}
		time.Sleep(testTouch)
		require.Empty(t, c.backend.keys(".session."))
		require.Equal(t, 404, c.nodes[1].list(sid))
	})
}

// Where hints come all the time no request is the first to look, and a session in
// use lives all the same.
func TestHintsDoNotStarveTouches(t *testing.T) {
	onOne(t, 2, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		for range int(2*testIdle/time.Second) + 60 {
			time.Sleep(time.Second)
			c.nodes[0].hints.publish(context.Background(), "", hintLook, string(digestOf(sid)))
			synctest.Wait()
			require.Equal(t, 200, c.nodes[1].list(sid))
		}
		require.Len(t, c.backend.keys(".session."), 1)
	})
}

// Too much of it is not shared, but what was shared goes on to be, and what is off
// makes room.
func TestTooMuchState(t *testing.T) {
	onOne(t, 2, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, told *told) {
		a := c.nodes[0]
		sid := a.openAsking(t)
		for i := range 120 {
			a.ok(t, sid, subscribeBody(fmt.Sprint(strings.Repeat("u", maxURI-10), i)))
		}
		a.ok(t, sid, levelBody("error"))
		require.Contains(t, a.log.String(), "too much")
		require.Equal(t, 200, c.nodes[1].list(sid))
		shared := len(told.get(c.nodes[1]))
		require.Greater(t, shared, 50)
		a.ok(t, sid, unsubscribeBody(fmt.Sprint(strings.Repeat("u", maxURI-10), 0)))
		a.ok(t, sid, subscribeBody("small"))
		k.settle(c, sid)
		require.True(t, slices.Contains(told.get(c.nodes[1]), "subscribe small"))
		c.nodes[1].hosts(t, sid).end(ErrEvicted)
		require.Equal(t, 200, c.nodes[1].list(sid))
		require.False(t, c.nodes[1].logs(t, sid, "info"))
	})
}
