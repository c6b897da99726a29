package sessionshare

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// lossy makes two or more replicas and a stream on the first one, whose hints can be
// muted; say is what the second one says outside a call.
func lossy(t *testing.T, n int, f func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string))) {
	virtual(t, func(t *testing.T) {
		c, stores := cuttableCluster(t, n)
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid)
		defer stream.cancel()
		time.Sleep(50 * time.Millisecond)
		f(t, c, stores, sid, stream, func(what string) { require.NoError(t, c.nodes[1].say(t, sid, what)) })
	})
}

// A message for the client's stream arrives though its hint was lost: with the
// next message of its copy, before it, or when its sender finds that nobody has
// fetched it.
func TestLostHintLosesNoMessage(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		lost := func(what string) {
			stores[0].mute.Store(true)
			say(what)
			time.Sleep(time.Millisecond)
			stores[0].mute.Store(false)
		}
		say("1")
		lost("2")
		lost("3")
		say("4")
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"1", "2", "3", "4"}, stream.said())
		lost("5")
		time.Sleep(2 * remindAfter)
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, stream.said())
		time.Sleep(outTTL)
		require.Len(t, stream.said(), 5, "nothing comes twice")
		require.Empty(t, c.backend.keys(".out."))
		require.True(t, c.nodes[1].outbox.empty())
	})
}

// A message whose hint was lost follows the stream to where the client has it by
// now.
func TestReminderFindsTheStream(t *testing.T) {
	lossy(t, 3, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		stores[0].mute.Store(true)
		say("x")
		time.Sleep(time.Millisecond)
		stores[0].mute.Store(false)
		stream.cancel()
		require.True(t, stream.ended())
		stream = c.nodes[2].stream(sid)
		time.Sleep(2 * remindAfter)
		require.Equal(t, []string{"x"}, stream.said())
		stream.cancel()
	})
}

// A message whose copy was evicted meanwhile is looked after all the same.
func TestReminderOutlivesTheCopy(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		stores[0].mute.Store(true)
		say("x")
		time.Sleep(time.Millisecond)
		stores[0].mute.Store(false)
		c.nodes[1].hosts(t, sid).end(ErrEvicted)
		time.Sleep(2 * remindAfter)
		require.Equal(t, []string{"x"}, stream.said())
	})
}

// A holder that cannot read the store for a moment sends later what it could not
// read; one that cannot delete sends nothing twice.
func TestHolderWithStoreTrouble(t *testing.T) {
	for name, op := range map[string]string{"cannot read": "GetMany", "cannot delete": "Delete"} {
		t.Run(name, func(t *testing.T) {
			lossy(t, 2, func(t *testing.T, c *cluster, _ []*cuttable, sid string, stream *pending, say func(string)) {
				c.nodes[0].view.set(failing(op, ".out."))
				var want []string
				for i := range 3 {
					want = append(want, fmt.Sprint(i))
					say(want[i])
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Second)
				c.nodes[0].view.heal()
				time.Sleep(3 * remindAfter)
				require.Equal(t, want, stream.said())
				require.Empty(t, c.backend.keys(".out."))
			})
		})
	}
}

// A store that hangs is waited for once, however many messages are out.
func TestReminderDoesNotHoldShutdownUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, stores := cuttableCluster(t, 2)
		var sids []string
		for range 20 {
			sids = append(sids, listening(t, c))
			stream := c.nodes[0].stream(sids[len(sids)-1])
			defer stream.cancel()
		}
		time.Sleep(50 * time.Millisecond)
		stores[0].mute.Store(true)
		for _, sid := range sids {
			require.NoError(t, c.nodes[1].say(t, sid, "x"))
		}
		release := c.nodes[1].view.hang(false, func(call storeCall) bool { return call.about(".stream.") })
		defer release()
		time.Sleep(remindAfter + 2*sweepTick)
		began := time.Now()
		require.NoError(t, c.nodes[1].Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(began), 2*DefaultStoreTimeout)
	})
}

// So it is with the first messages on a stream, in order.
func TestFirstHintsLost(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		stores[0].mute.Store(true)
		say("1")
		say("2")
		time.Sleep(time.Millisecond)
		stores[0].mute.Store(false)
		say("3")
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"1", "2", "3"}, stream.said())
		time.Sleep(outTTL)
		require.Len(t, stream.said(), 3)
	})
}

// So it is with more than one hint can name: the oldest come later.
func TestManyHintsLost(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		want := []string{"0"}
		say("0")
		time.Sleep(50 * time.Millisecond)
		stores[0].mute.Store(true)
		for i := range 3 * maxNamed {
			want = append(want, fmt.Sprint(i+1))
			say(want[i+1])
		}
		time.Sleep(time.Millisecond)
		stores[0].mute.Store(false)
		say("last")
		time.Sleep(50 * time.Millisecond)
		require.Len(t, stream.said(), 2+maxNamed)
		time.Sleep(outTTL)
		require.ElementsMatch(t, append(want, "last"), stream.said())
	})
}

// A stream moves, and one replica is slow to send hints on: what goes straight to
// the new place does not come before them, nor instead of them.
func TestSlowRedirect(t *testing.T) {
	lossy(t, 3, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		stores[1].delay.Store(int64(50 * time.Millisecond))
		stream.cancel()
		require.True(t, stream.ended())
		stream = c.nodes[2].stream(sid)
		defer stream.cancel()
		c.nodes[0].view.set(func(call storeCall) fault {
			if call.about(".stream.") {
				return fault{delay: 300 * time.Millisecond}
			}
			return fault{}
		})
		want := []string{"1", "2", "3", "4", "5", "6", "7"}
		for _, what := range want[:6] {
			say(what) // hints go to where the stream was
		}
		time.Sleep(200 * time.Millisecond)
		say("7") // straight to where it is
		time.Sleep(outTTL)
		require.Equal(t, want, stream.said())
	})
}

// A hint comes twice, and what it names cannot be read at first.
func TestRepeatedHintAndFailedRead(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		say("1")
		time.Sleep(50 * time.Millisecond)
		a, b := c.nodes[0].hosts(t, sid), c.nodes[1].hosts(t, sid)
		c.nodes[0].view.set(failing("GetMany", ".out."))
		say("2")
		synctest.Wait()
		say("3")
		a.receiveOut(keyOut + string(b.digest) + "." + b.tag + ".3")
		time.Sleep(100 * time.Millisecond)
		c.nodes[0].view.heal()
		time.Sleep(outTTL)
		require.Equal(t, []string{"1", "2", "3"}, stream.said())
	})
}

func failing(op, about string) func(storeCall) fault {
	return func(c storeCall) fault {
		if c.op == op && c.about(about) {
			return fault{err: errors.New("trouble"), delay: 10 * time.Millisecond}
		}
		return fault{}
	}
}

// A claim that could not be taken back names this replica, where the stream is no
// more: it does not send itself hints without end.
func TestStaleClaimMakesNoLoop(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		v := c.nodes[0].view
		v.set(func(call storeCall) fault {
			if call.op == "CompareAndSwap" && call.about(".stream.") {
				return fault{err: errors.New("trouble")}
			}
			return fault{delay: time.Millisecond}
		})
		stream.cancel()
		require.True(t, stream.ended())
		before := len(v.calls())
		say("x")
		time.Sleep(10 * time.Second)
		require.Less(t, len(v.calls())-before, 200)
	})
}

// What a message's sender was told did not arrive, arrives neither later nor twice,
// though the store has it.
func TestLostAcknowledgementOfAMessage(t *testing.T) {
	for name, events := range map[string]bool{"event store": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				told := &told{by: map[*node][]string{}}
				c := newCluster(t, 2, hinted, told.asking, func(cfg *nodeConfig) {
					cfg.opts.RecheckInterval = 0
					if events {
						cfg.handler.EventStore = mcp.NewMemoryEventStore(nil)
					}
				})
				sid := listening(t, c)
				stream := c.nodes[0].stream(sid)
				defer stream.cancel()
				time.Sleep(50 * time.Millisecond)
				b := c.nodes[1]
				require.NoError(t, b.say(t, sid, "1"))
				time.Sleep(50 * time.Millisecond)
				b.view.loseAcks(func(call storeCall) bool { return call.op == "Put" && call.about(".out.") })
				want := []string{"1", "2", "3"}
				if b.say(t, sid, "2") != nil {
					want = []string{"1", "3"}
				}
				b.view.heal()
				time.Sleep(31 * time.Second)
				require.Equal(t, 200, b.list(sid)) // its look makes it forward again
				time.Sleep(time.Second)
				require.NoError(t, b.say(t, sid, "3"))
				time.Sleep(time.Second)
				require.Equal(t, want, stream.said())
			})
		})
	}
}

// A message that could not be deleted does not come again on the client's next
// stream.
func TestUndeletedMessageDoesNotComeAgain(t *testing.T) {
	lossy(t, 2, func(t *testing.T, c *cluster, stores []*cuttable, sid string, stream *pending, say func(string)) {
		c.nodes[0].view.set(failing("Delete", ".out."))
		say("1")
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"1"}, stream.said())
		c.nodes[0].view.heal()
		stream.cancel()
		require.True(t, stream.ended())
		stream = c.nodes[0].stream(sid)
		defer stream.cancel()
		time.Sleep(3 * remindAfter)
		require.Empty(t, c.backend.keys(".out."))
		require.Empty(t, stream.said())
	})
}

// Hints are small, whatever is sent, and what is looked after is bounded.
func TestOutboxBounds(t *testing.T) {
	r, err := New(Options{Store: NewMemoryStore()})
	require.NoError(t, err)
	o := &r.outbox
	d := digestOf("x")
	base := keyOut + string(d) + "." + newTag(copyTag) + "."
	for i := range int64(2 * maxOutbox) {
		about := o.hint(d, base, 1e18+i)
		o.add(d, base, 1e18+i, maxRelayed)
		require.LessOrEqual(t, 1+len(about), maxHint)
		keys := namedKeys(about[len(d)+1:])
		require.Len(t, keys, int(min(i, maxNamed))+1)
		require.Equal(t, base+fmt.Sprint(int64(1e18)+i), keys[len(keys)-1])
	}
	require.Equal(t, maxOutbox, o.count)
	o.drop(func(*outMessage) bool { return true })
	require.True(t, o.empty())
	require.Equal(t, []string{"out.d.a.3", "out.d.a.7"}, namedKeys("out.d.a.7 3 x -1 0"))
	require.Len(t, namedKeys("out.d.a.7"+strings.Repeat(" 1", 100)), maxNamed+1)
	sent := sentKeys{}
	for i := range 3 * maxSentKeys {
		sent = sent.add([]string{fmt.Sprint(i)})
	}
	require.Len(t, sent, maxSentKeys)
}
