package sessionshare

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// While the store is down warm copies go on; a cold call gets 503 after one
// attempt, a message that no client sends again waits and then gets 503, a GET
// waits and then gets the block and a clean end. Nothing is lost.
func TestStoreDown(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		a.view.down()
		b.view.down()
		for range 10 {
			time.Sleep(time.Minute)
			require.Equal(t, 200, a.list(sid), "warm")
		}
		warm := a.stream(sid)
		require.False(t, warm.ended())
		began := time.Now()
		assert.Equal(t, 503, b.list(sid))
		assert.Equal(t, 503, b.delete(sid))
		assert.Zero(t, time.Since(began))
		assert.Equal(t, 503, b.post(sid, greetBody).Code)
		assert.Equal(t, DefaultHoldTimeout, time.Since(began))
		began = time.Now()
		w := b.do("GET", sid, "")
		assert.Equal(t, DefaultHoldTimeout, time.Since(began))
		assert.Equal(t, 200, w.Code)
		assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
		assert.Regexp(t, `^id: ~[^\n]+\n\n$`, w.Body.String())
		assert.Zero(t, b.built.Load())
		a.view.heal()
		b.view.heal()
		assert.Equal(t, 200, b.list(sid))
		assert.False(t, warm.ended())
		warm.cancel()
		<-warm.done
		assert.Empty(t, c.backend.keys("closed."), "nothing ended")
	})
}

// A store that answers after the deadline, or never, and one that ignores its
// context, hold nobody up beyond the bound.
func TestStoreHangs(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %v", deaf), func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				time.Sleep(testTouch)
				require.Equal(t, 200, a.list(sid)) // a copy that has rested makes all wait, rule 1
				time.Sleep(testRecheck)
				releaseA, releaseB := a.view.hang(deaf, nil), b.view.hang(deaf, nil)
				defer releaseA()
				defer releaseB()
				within := func(bound time.Duration, what string, f func()) {
					t.Helper()
					began := time.Now()
					f()
					assert.LessOrEqual(t, time.Since(began), bound, what)
				}
				first := a.start("POST", sid, pingBody)
				synctest.Wait()
				within(0, "others do not wait for the one that looks", func() { assert.Equal(t, 200, a.list(sid)) })
				within(DefaultStoreTimeout, "a warm call", func() { <-first.done })
				within(DefaultStoreTimeout, "a cold call", func() { assert.Equal(t, 503, b.list(sid)) })
				within(DefaultHoldTimeout+2*DefaultStoreTimeout, "a cold GET", func() { assert.Equal(t, 200, b.do("GET", sid, "").Code) })
				within(DefaultStoreTimeout, "a cold DELETE", func() { assert.Equal(t, 503, b.delete(sid)) })
				within(2*DefaultStoreTimeout, "an open", func() { assert.NotEmpty(t, a.initialize(t)) })
				within(DefaultStoreTimeout, "a DELETE", func() { assert.Equal(t, 503, a.delete(sid)) })
				releaseA()
				releaseB()
				time.Sleep(saveDelayMax + 2*time.Second)
				assert.Equal(t, 404, b.list(sid), "what hung has been made up for")
			})
		})
	}
}

// A call that hangs is not repeated without end: what a dead store can pile up is
// bounded, and Shutdown comes to its end.
func TestStoreHangsForEver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		a := c.nodes[0]
		sid := a.open(t)
		stream := a.stream(sid)
		release := a.view.hang(true, nil)
		for range 300 {
			time.Sleep(testRecheck)
			require.Equal(t, 200, a.list(sid))
		}
		a.owned.mu.Lock()
		running := a.owned.running
		a.owned.mu.Unlock()
		assert.LessOrEqual(t, running, 700, "each look leaves at most one call behind")
		stream.cancel()
		<-stream.done
		release()
	})
}

// One replica can write but not read, or read but not write; the others go on,
// and what it must not do it does not do.
func TestOneWayPartition(t *testing.T) {
	for name, writes := range map[string]bool{"no writes": true, "no reads": false} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				require.Equal(t, 200, b.list(sid))
				a.view.partition(writes, !writes)
				for range 20 {
					time.Sleep(time.Minute)
					require.Equal(t, 200, a.list(sid))
					require.Equal(t, 200, b.list(sid))
				}
				written := a.view.writes()
				require.Equal(t, 204, b.delete(sid))
				time.Sleep(testRecheck + DefaultStoreTimeout)
				if writes {
					assert.Equal(t, 404, a.list(sid), "it can read the mark")
				} else {
					assert.Equal(t, 200, a.list(sid), "it cannot know")
					assert.Equal(t, written, a.view.writes(), "never touch what could not be read")
				}
				a.view.heal()
				time.Sleep(testRecheck + DefaultStoreTimeout)
				assert.Equal(t, 404, a.list(sid))
				assert.Empty(t, c.backend.keys("session."))
			})
		})
	}
}

// Rule 3: a copy that could not read its marks for UnverifiedLimit is in doubt:
// its streams end, nothing is touched, calls get 503. When the store is back, the
// record decides.
func TestUnverifiedLimit(t *testing.T) {
	for name, closed := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain, func(cfg *nodeConfig) { cfg.opts.UnverifiedLimit = 5 * time.Minute })
				a, b := c.nodes[0], c.nodes[1]
				sid := a.open(t)
				stream := a.stream(sid)
				a.view.down()
				time.Sleep(5*time.Minute - time.Second)
				require.Equal(t, 200, a.list(sid))
				require.False(t, stream.ended())
				time.Sleep(2 * time.Second)
				require.True(t, stream.ended(), "streams end")
				began := time.Now()
				assert.Equal(t, 503, a.list(sid))
				assert.Equal(t, 503, a.post(sid, greetBody).Code)
				assert.Equal(t, 200, a.do("GET", sid, "").Code)
				assert.Equal(t, 2*DefaultHoldTimeout, time.Since(began))
				require.Equal(t, 200, b.list(sid))
				if closed {
					require.Equal(t, 204, b.delete(sid))
				}
				writes := a.view.writes()
				a.view.heal()
				if closed {
					assert.Equal(t, 404, a.list(sid))
					assert.Equal(t, writes, a.view.writes(), "nothing is touched")
				} else {
					assert.Equal(t, 200, a.list(sid), "it goes on, verified")
					assert.EqualValues(t, 1, a.built.Load())
					a.view.down()
					assert.Equal(t, 200, a.list(sid))
				}
			})
		})
	}
}

// Rules 3 and 4: a machine that slept, by wall or by monotonic time, trusts
// nothing that it knew. Absent marks prove nothing, a record does.
func TestSuspendedProcess(t *testing.T) {
	jumps := map[string]func(*clock, time.Duration){
		"monotonic clock stood still": (*clock).suspend,
		"wall clock was set back":     (*clock).stall,
	}
	for name, jump := range jumps {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain, func(cfg *nodeConfig) {
					cfg.opts.UnverifiedLimit = 5 * time.Minute
				})
				a, b := c.nodes[0], c.nodes[1]
				open, closed, lost := a.open(t), a.open(t), a.open(t)
				require.Equal(t, 200, b.list(closed))
				require.Equal(t, 204, b.delete(closed))
				c.backend.lose("closed.") // as if it had expired
				c.backend.lose(string(digestOf(lost)))
				jump(a.clock, 6*time.Minute)
				assert.Equal(t, 404, a.list(closed))
				assert.Equal(t, 404, a.list(lost), "no record proves it open")
				assert.Equal(t, 200, a.list(open))
				jump(a.clock, 6*time.Minute)
				a.view.down()
				assert.Equal(t, 503, a.list(open), "unreadable: doubt")
				a.view.heal()
				assert.Equal(t, 200, a.list(open))
				assert.Len(t, c.backend.keys("session."), 1, "nothing was revived")
			})
		})
	}
}

// A look that began before the machine slept says nothing about the time after.
func TestSuspendedDuringALook(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.opts.UnverifiedLimit = 5 * time.Minute })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		time.Sleep(testRecheck)
		release := holdAnswer(a.view)
		call := a.start("POST", sid, toolBody("echo"))
		require.False(t, call.ended())
		require.Equal(t, 204, b.delete(sid))
		a.clock.suspend(time.Hour)
		release()
		status, _ := call.result()
		assert.Equal(t, 404, status)
	})
}

// holdAnswer makes the next read wait after it was answered.
func holdAnswer(v *faultView) (release func()) {
	gate := make(chan struct{})
	var once bool
	v.set(func(c storeCall) fault {
		if once || c.write() {
			return fault{}
		}
		once = true
		return fault{after: gate}
	})
	return func() { close(gate) }
}

// A store with three methods that takes long: the marks are read in time, whatever
// becomes of the state, which is read after them.
func TestSlowPlainStore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := newCluster(t, 1, func(cfg *nodeConfig) { cfg.plain = true }).nodes[0]
		sid := a.open(t)
		a.view.set(func(call storeCall) fault {
			return fault{delay: 800 * time.Millisecond}
		})
		for range 40 {
			time.Sleep(time.Minute)
			require.Equal(t, 200, a.list(sid))
		}
		a.view.set(failing("Get", ".state."))
		for range 40 {
			time.Sleep(time.Minute)
			require.Equal(t, 200, a.list(sid))
		}
	})
}
