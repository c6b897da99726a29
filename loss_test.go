package sessionshare

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Lost data: a record that the store lost is written again by a copy that knows
// the session alive; a close mark keeps it away.
func TestLostRecordIsWrittenAgain(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		c.backend.lose("session.")
		assert.Equal(t, 404, b.list(sid), "b cannot know")
		time.Sleep(testTouch)
		require.Equal(t, 200, a.list(sid))
		assert.Equal(t, 200, b.list(sid))
		time.Sleep(2 * testTouch)
		require.Equal(t, 204, b.delete(sid))
		a.view.partition(false, true) // a cannot read the mark, and touches nothing
		require.Equal(t, 200, a.list(sid))
		assert.Empty(t, c.backend.keys("session."))
	})
}

// Rule 2: a record that expired long ago is not brought back by a copy that only
// has not noticed.
func TestExpiredRecordIsNotRevived(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 1, plain, func(cfg *nodeConfig) { cfg.opts.UnverifiedLimit = testIdle })
		a := c.nodes[0]
		sid := a.open(t)
		time.Sleep(testTouch - time.Second)
		require.Equal(t, 200, a.list(sid)) // verified, not touched
		time.Sleep(testIdle - testTouch + 2*time.Second)
		require.Empty(t, c.backend.keys("session."))
		assert.Equal(t, 404, a.list(sid))
		assert.Empty(t, c.backend.keys("session."))
	})
}

// Late writes: a Put of the record that timed out is applied after a DELETE. The
// mark outlives what it brings back.
func TestLatePutRevivesNothing(t *testing.T) {
	for _, place := range []string{"here", "elsewhere"} {
		t.Run(place, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, b := c.nodes[0], c.nodes[1]
				a.view.delayWrites(10*time.Second, func(call storeCall) bool { return call.op == "Put" && call.about("session.") })
				sid := a.open(t)
				a.view.heal()
				if place == "here" {
					require.Equal(t, 204, a.delete(sid))
				} else {
					time.Sleep(4 * time.Second)
					require.Equal(t, 200, b.list(sid), "the second attempt shared it")
					require.Equal(t, 204, b.delete(sid))
				}
				time.Sleep(20 * time.Second)
				require.Len(t, c.backend.keys("session."), 1, "the late write came")
				for range 4 {
					for _, n := range c.nodes {
						assert.Equal(t, 404, n.list(sid))
					}
					time.Sleep(testIdle / 2)
				}
				assert.Empty(t, c.backend.keys("session."))
			})
		})
	}
}

// Lost acknowledgements: a share that was applied and reported failed is known to
// others, who may close the session; the opener finds out like anybody else.
func TestLostAcknowledgementOfAShare(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		a.view.loseAcks(nil)
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		require.Equal(t, 204, b.delete(sid))
		time.Sleep(testRecheck + DefaultStoreTimeout)
		assert.Equal(t, 404, a.list(sid))
		time.Sleep(2 * time.Minute)
		assert.Empty(t, c.backend.keys("session."), "nothing is put again")
		assert.Zero(t, a.Stats().Hosted)
	})
}

// The same without a request that would notice: the background save reads first.
func TestLostAcknowledgementWithoutTraffic(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		a.view.loseAcks(nil)
		sid := a.open(t)
		require.Equal(t, 204, b.delete(sid))
		a.view.heal()
		time.Sleep(2 * time.Minute)
		assert.Empty(t, c.backend.keys("session."))
		assert.Zero(t, a.Stats().Hosted)
	})
}

// A DELETE whose acknowledgement is lost has happened, and is repeated.
func TestLostAcknowledgementOfADelete(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		a.view.loseAcks(nil)
		assert.Equal(t, 503, a.delete(sid))
		assert.Equal(t, 404, b.list(sid))
		a.view.heal()
		time.Sleep(time.Minute)
		assert.Empty(t, c.backend.keys("session."))
		assert.Equal(t, 404, a.list(sid))
	})
}

// Unusable records are 404, logged once, and neither rewritten nor removed.
func TestUnusableRecords(t *testing.T) {
	for name, garbage := range map[string]string{
		"no JSON": "\x00\xff", "empty object": "{}", "null": "null", "array": "[]", "old": `{"v":0}`,
		"no params": `{"v":1,"protocol":"2025-06-18","idle_ms":1000}`,
		"huge idle": `{"v":1,"protocol":"2025-06-18","idle_ms":9223372036854775807,"params":{}}`,
		"cut":       `{"v":1,"principal":"","endpoint":"/mcp","incar`,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				require.NoError(t, c.backend.Put(t.Context(), a.keys.session(digestOf(sid)), []byte(garbage), testIdle))
				for range 3 {
					assert.Equal(t, 404, b.list(sid))
				}
				assert.Equal(t, 404, b.delete(sid))
				assert.Equal(t, 1, strings.Count(b.log.String(), "not usable"))
				assert.Zero(t, b.view.writes())
				assert.Equal(t, 200, a.list(sid), "the copy that has it goes on")
			})
		})
	}
}

// A record of a newer version: this replica lags behind a deploy. 503 for at most
// 30 s, then 404.
func TestNewerRecord(t *testing.T) {
	for name, newer := range map[string]string{"version": `{"v":2}`, "another type": `{"v":3,"principal":{"sub":"u"}}`} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, 2)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				require.NoError(t, c.backend.Put(t.Context(), a.keys.session(digestOf(sid)), []byte(newer), testIdle))
				assert.Equal(t, 503, b.list(sid))
				time.Sleep(29 * time.Second)
				assert.Equal(t, 503, b.list(sid))
				time.Sleep(2 * time.Second)
				assert.Equal(t, 404, b.list(sid))
			})
		})
	}
}

// The session ID is a credential: it is not in the store, nor in logs or error
// texts, whatever goes wrong.
func TestSessionIDStaysSecret(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		a.view.down()
		sid := a.open(t)
		secret := func(texts ...string) {
			t.Helper()
			for _, s := range texts {
				assert.NotContains(t, s, sid)
			}
		}
		a.view.heal()
		time.Sleep(time.Minute)
		require.Equal(t, 200, b.list(sid))
		for _, n := range c.nodes {
			n.view.down()
			time.Sleep(testTouch)
			secret(n.post(sid, greetBody).Body.String())
			if err := n.CloseSession(t.Context(), sid); assert.Error(t, err) {
				secret(err.Error())
			}
			n.view.heal()
			secret(n.post(sid, pingBody).Body.String())
			secret(n.do("GET", sid, "").Body.String())
			time.Sleep(time.Minute)
		}
		for k, e := range c.backend.dump() {
			secret(k, string(e.value))
		}
		for _, n := range c.nodes {
			secret(n.log.String())
			assert.Contains(t, n.log.String(), digestOf(sid).short(), "logs name it by its digest")
			for _, call := range n.view.calls() {
				secret(call.keys...)
			}
		}
	})
}

// Rule 2: a DELETE that comes between the look and the touch leaves a record that
// Touch reports missing. The marks are read once more, and nothing is written.
func TestDeleteBetweenLookAndTouch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		time.Sleep(testTouch)
		release := a.view.hang(false, func(call storeCall) bool { return call.op == "Touch" })
		call := a.start("POST", sid, toolBody("echo"))
		require.False(t, call.ended())
		require.Equal(t, 204, b.delete(sid))
		a.view.calls()
		release()
		status, _ := call.result()
		assert.Equal(t, 404, status)
		for _, call := range a.view.calls() {
			assert.False(t, call.write(), "%v", call)
		}
		assert.Zero(t, a.Stats().Hosted)
		assert.Empty(t, c.backend.keys("session."))
	})
}

// The same on a store with three methods, where the Put itself may bring back what
// the DELETE removed: the marks are read after it, and it is removed again.
func TestDeleteBetweenLookAndPut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.plain = true })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		time.Sleep(testTouch)
		release := a.view.hang(false, func(call storeCall) bool { return call.op == "Put" })
		call := a.start("POST", sid, toolBody("echo"))
		require.False(t, call.ended())
		require.Equal(t, 204, b.delete(sid))
		release()
		call.result()
		assert.Empty(t, c.backend.keys("session."))
		time.Sleep(testRecheck)
		assert.Equal(t, 404, a.list(sid))
		assert.Empty(t, c.backend.keys("session."))
	})
}
