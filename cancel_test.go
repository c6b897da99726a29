package sessionshare

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func slowBody(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"slow","arguments":{}}}`
}

func cancelBody(id string) string {
	return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
}

// run starts a slow call under this ID.
func (n *node) run(sid, id string) *pending {
	p := n.start(http.MethodPost, sid, slowBody(id))
	<-n.entered
	return p
}

// cancelTime is how long a cancellation may take from one replica to another.
func (k storeKind) cancelTime() time.Duration {
	if k.hinted {
		return 50 * time.Millisecond
	}
	return 2 * cancelTick
}

// A cancellation reaches the call wherever it runs, however its ID is spelled, and
// no other call: not that of another session, not "1" for 1.
func TestCancelElsewhere(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid, other := c.nodes[0].openAsking(t), c.nodes[0].openAsking(t)
		c.everywhere(sid)
		c.everywhere(other)
		for _, id := range []struct{ call, cancel string }{
			{"7", "7"}, {"7", "7.0"}, {`"7"`, `"7"`}, {`"a/b"`, `"a\/b"`}, {"9007199254740991", "9007199254740991"},
		} {
			meant := c.nodes[1].run(sid, id.call)
			different := c.nodes[1].run(sid, map[bool]string{true: `"7"`, false: "7"}[id.call == "7"]+"")
			if id.call != "7" && id.call != `"7"` {
				different.cancel()
			}
			foreign := c.nodes[1].run(other, id.call)
			elsewhere := c.nodes[0].run(sid, "1000")
			time.Sleep(cancelTick)
			require.Equal(t, 202, c.nodes[2].post(sid, cancelBody(id.cancel)).Code)
			require.Contains(t, meant.finished(t, k.cancelTime()), "error", id.cancel)
			time.Sleep(3 * time.Second)
			for _, p := range []*pending{foreign, elsewhere, different} {
				if p != different || id.call == "7" || id.call == `"7"` {
					require.False(t, p.ended(), "a call that was not meant was cancelled by %s", id.cancel)
				}
			}
			require.Empty(t, c.backend.keys(".cancel."), "deleted when it has matched")
			require.Equal(t, 202, c.nodes[0].post(sid, cancelBody("1000")).Code)
			elsewhere.finished(t, time.Millisecond)
			require.Equal(t, 202, c.nodes[1].post(other, cancelBody(id.call)).Code)
			foreign.finished(t, time.Millisecond)
			if !different.ended() {
				require.Equal(t, 202, c.nodes[1].post(sid, cancelBody(map[bool]string{true: `"7"`, false: "7"}[id.call == "7"])).Code)
				different.finished(t, time.Millisecond)
			}
			c.nodes[1].hosts(t, sid).cancelOrphans()
			time.Sleep(time.Second)
		}
	})
}

// A cancellation of a call that runs where it arrives is meant for that one, and
// handled nowhere else.
func TestCancelHere(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		here, there := c.nodes[0].run(sid, "7"), c.nodes[1].run(sid, "7")
		require.Equal(t, 202, c.nodes[0].post(sid, cancelBody("7")).Code)
		require.Contains(t, here.finished(t, time.Millisecond), "error")
		time.Sleep(3 * time.Second)
		require.False(t, there.ended())
		require.Empty(t, c.backend.keys(".cancel."))
		c.nodes[1].letGo()
		there.finished(t, time.Second)
	})
}

// A note that is older than a call means an earlier call with the same ID. The
// clock of a replica that is an hour off does not keep cancellations from their
// calls.
func TestOldCancellation(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		require.Equal(t, 202, a.post(sid, cancelBody("7")).Code, "its call is over")
		time.Sleep(100 * time.Millisecond)
		call := b.run(sid, "7")
		time.Sleep(5 * time.Second)
		require.False(t, call.ended(), "the note is older")
		require.Equal(t, 202, a.post(sid, cancelBody("7")).Code)
		require.Contains(t, call.finished(t, k.cancelTime()), "error")

		for _, off := range []time.Duration{time.Hour, -time.Hour} {
			a.clock.suspend(off)
			call = b.run(sid, "8")
			time.Sleep(2 * cancelTick)
			require.Equal(t, 202, a.post(sid, cancelBody("8")).Code)
			require.Contains(t, call.finished(t, k.cancelTime()), "error", "clock off by %v", off)
			a.clock.suspend(-off)
		}
	})
}

// A client that sends cancellations of nothing costs the store 16 keys, and one
// that the store has not taken is not among them.
func TestManyCancellations(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		b.view.down()
		held := b.start(http.MethodPost, sid, cancelBody("1"))
		time.Sleep(12 * time.Second)
		require.False(t, held.ended())
		b.view.heal()
		require.Empty(t, held.finished(t, 2*time.Second))
		require.Len(t, c.backend.keys(".cancel."), 1)
		for i := range 100 {
			require.Equal(t, 202, b.post(sid, cancelBody(fmt.Sprint(i+1))).Code)
		}
		require.Len(t, c.backend.keys(".cancel."), maxCancels-1, "one was noted twice")
		time.Sleep(cancelTTL)
		require.Empty(t, c.backend.keys(".cancel."))
		call := a.run(sid, "7")
		require.Equal(t, 202, b.post(sid, cancelBody("7")).Code)
		require.Contains(t, call.finished(t, k.cancelTime()), "error")
	})
}

// A call whose client has hung up is cancelled all the same.
func TestCancelOrphan(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[0].run(sid, "7")
		call.cancel()
		require.True(t, call.ended())
		time.Sleep(2 * cancelTick)
		require.Equal(t, 202, c.nodes[1].post(sid, cancelBody("7")).Code)
		copy := c.nodes[0].hosts(t, sid)
		until(t, k.cancelTime(), "the orphan runs on", func() bool { return len(copy.longCalls(copy.r.now(), 0)) == 0 })
	})
}

// What is no cancellation, or an absurd one, harms nobody.
func FuzzCancelAndAnswerBodies(f *testing.F) {
	for _, s := range []string{cancelBody("1"), cancelBody(`"x"`), cancelBody("null"), cancelBody("{}"), answerWith(`"a.1.b"`, "{}"),
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a.p.b"}}`, "[" + answerWith("1", "{}") + "]"} {
		f.Add([]byte(s))
	}
	r, err := New(Options{Store: NewMemoryStore()})
	require.NoError(f, err)
	c := &hostedCopy{Session: Session{r: r}, tag: newTag(copyTag)}
	c.Session = Session{r: r, c: c, digest: digestOf("x"), rec: &record{Key: make([]byte, recordKey)}}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := &body{data: b, scanned: scan(b)}
		data, answers, _, err := c.incoming(in)
		if err != nil || !in.ok {
			return
		}
		// No response keeps a number that the SDK could take for an ID of its own,
		// unless this copy has sealed it.
		out := scan(data)
		require.True(t, out.ok, string(data))
		out.each(func(m *message) {
			if m.response() && m.id[0] != '"' {
				require.NotEmpty(t, answers)
			}
		})
	})
}
