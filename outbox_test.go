package sessionshare

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A message for the client's stream arrives though its hint was lost: with the
// next message of its copy, before it, or when its sender finds that nobody has
// fetched it.
func TestLostHintLosesNoMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, stores := cuttableCluster(t, 2)
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid)
		time.Sleep(50 * time.Millisecond)
		lost := func(what string) {
			stores[0].mute.Store(true)
			require.NoError(t, c.nodes[1].say(t, sid, what))
			time.Sleep(time.Millisecond)
			stores[0].mute.Store(false)
		}
		require.NoError(t, c.nodes[1].say(t, sid, "1"))
		lost("2")
		lost("3")
		require.NoError(t, c.nodes[1].say(t, sid, "4"))
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"1", "2", "3", "4"}, stream.said())
		lost("5")
		time.Sleep(2 * remindAfter)
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, stream.said())
		time.Sleep(outTTL)
		require.Len(t, stream.said(), 5, "nothing comes twice")
		require.Empty(t, c.backend.keys(".out."))
		require.Empty(t, c.nodes[1].outbox.sent)
		stream.cancel()
	})
}

// A message whose hint was lost follows the stream to where the client has it by
// now.
func TestReminderFindsTheStream(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c, stores := cuttableCluster(t, 3)
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid)
		time.Sleep(50 * time.Millisecond)
		stores[0].mute.Store(true)
		require.NoError(t, c.nodes[1].say(t, sid, "x"))
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

// A holder that cannot read the store for a moment sends later what it could not
// read; one that cannot delete sends nothing twice.
func TestHolderWithStoreTrouble(t *testing.T) {
	errTrouble := errors.New("trouble")
	for name, op := range map[string]string{"cannot read": "GetMany", "cannot delete": "Delete"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c, _ := cuttableCluster(t, 2)
				sid := listening(t, c)
				stream := c.nodes[0].stream(sid)
				time.Sleep(50 * time.Millisecond)
				c.nodes[0].view.set(func(call storeCall) fault {
					if call.op == op && call.about(".out.") {
						return fault{err: errTrouble}
					}
					return fault{}
				})
				var want []string
				for i := range 3 {
					want = append(want, fmt.Sprint(i))
					require.NoError(t, c.nodes[1].say(t, sid, want[i]))
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Second)
				c.nodes[0].view.heal()
				time.Sleep(3 * remindAfter)
				require.Equal(t, want, stream.said())
				require.Empty(t, c.backend.keys(".out."))
				stream.cancel()
			})
		})
	}
}

func TestInlets(t *testing.T) {
	in := inlets{}
	for _, c := range []struct {
		key  string
		want []string
	}{
		{"out.d.a.5", []string{"out.d.a.5"}},
		{"out.d.a.5", nil},
		{"out.d.a.8", []string{"out.d.a.6", "out.d.a.7", "out.d.a.8"}},
		{"out.d.a.7", nil},
		{"out.d.a.3", []string{"out.d.a.3"}}, // it went to where the stream was before
		{"out.d.b.1", []string{"out.d.b.1"}}, // another copy
		{"out.d.a.x", nil},
		{"out.d.a.0", nil},
		{"nothing", nil},
	} {
		assert.Equal(t, c.want, in.take(c.key), c.key)
	}
	assert.Len(t, in.take("out.d.a.9000000000000000000"), maxGap+1, "a gap is bounded")
	for i := range 3 * maxInlets {
		in.take(fmt.Sprintf("out.d.%d.1", i))
	}
	assert.LessOrEqual(t, len(in), maxInlets)
}
