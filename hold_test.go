package sessionshare

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What no client sends again is held while the store cannot be read, and served
// when it is back: a notification, an answer, the first GET.
func TestHeldUntilTheStoreIsBack(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		note := b.start("POST", sid, greetBody)
		answer := b.start("POST", sid, `{"jsonrpc":"2.0","id":5,"result":{}}`)
		get := b.start("GET", sid, "")
		batch := b.start("POST", sid, `[`+greetBody+`]`, header{"Mcp-Protocol-Version", "2025-03-26"})
		time.Sleep(10 * time.Second)
		for _, p := range []*pending{note, answer, get, batch} {
			require.False(t, p.ended())
		}
		b.view.heal()
		time.Sleep(holdPauseMax + holdPauseMax/2)
		for _, p := range []*pending{note, answer, batch} {
			status, _ := p.result()
			assert.Equal(t, 202, status)
		}
		assert.False(t, get.ended())
		get.cancel()
		status, body := get.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, ": ok")
		assert.EqualValues(t, 4, b.Stats().Held)
		assert.EqualValues(t, 1, b.built.Load())
	})
}

// A call, also one in a batch, and what cannot be understood, are not held.
func TestCallsAreNotHeld(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		began := time.Now()
		for _, body := range []string{pingBody, `[` + greetBody + `,` + pingBody + `]`, "nonsense", "", initBody} {
			assert.Equal(t, 503, b.post(sid, body).Code, body)
		}
		assert.Zero(t, time.Since(began))
	})
}

// A client that hangs up is held no longer.
func TestHeldClientHangsUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		note := b.start("POST", sid, greetBody)
		require.False(t, note.ended())
		note.cancel()
		assert.True(t, note.ended())
		assert.Zero(t, b.holds.requests)
	})
}

// A copy in doubt holds what no client sends again, just as a cold replica does.
func TestHeldByACopyInDoubt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) { cfg.opts.UnverifiedLimit = time.Minute })
		a := c.nodes[0]
		sid := a.open(t)
		a.view.down()
		time.Sleep(time.Minute)
		get, note := a.start("GET", sid, ""), a.start("POST", sid, greetBody)
		time.Sleep(5 * time.Second)
		require.False(t, get.ended())
		require.False(t, note.ended())
		a.view.heal()
		status, _ := note.result()
		assert.Equal(t, 202, status)
		time.Sleep(2 * holdPauseMax)
		assert.False(t, get.ended())
		_, body := get.w.result()
		assert.Contains(t, body, ": ok")
		get.cancel()
		<-get.done
	})
}

// At most 1,000 requests are held at a time; beyond that they are answered at
// once.
func TestHoldLimitRequests(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.opts.HoldTimeout = time.Minute })
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		held := make([]*pending, maxHeld)
		for i := range held {
			held[i] = b.start("POST", sid, greetBody)
		}
		synctest.Wait()
		began := time.Now()
		assert.Equal(t, 503, b.post(sid, greetBody).Code)
		w := b.do("GET", sid, "")
		assert.Equal(t, 200, w.Code, "a GET is never refused")
		assert.Contains(t, w.Body.String(), "id: ~")
		assert.Zero(t, time.Since(began))
		held[0].cancel()
		<-held[0].done
		more := b.start("POST", sid, greetBody)
		assert.False(t, more.ended(), "there is room again")
		more.cancel()
		for _, p := range held {
			p.cancel()
			<-p.done
		}
		<-more.done
		assert.Zero(t, b.holds.requests)
		assert.Zero(t, b.holds.bytes)
	})
}

// At most 64 MiB of bodies are held at a time.
func TestHoldLimitBytes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		sid := c.nodes[0].open(t)
		b := c.nodes[1]
		b.view.down()
		big := greetBody + strings.Repeat(" ", 4<<20-len(greetBody))
		var held []*pending
		for range maxHeldBytes / len(big) {
			held = append(held, b.start("POST", sid, big))
		}
		synctest.Wait()
		assert.Equal(t, maxHeldBytes, b.holds.bytes)
		began := time.Now()
		assert.Equal(t, 503, b.post(sid, greetBody).Code)
		assert.Zero(t, time.Since(began))
		b.view.heal()
		for _, p := range held {
			status, _ := p.result()
			assert.Equal(t, 202, status)
		}
		assert.Zero(t, b.holds.bytes)
	})
}
