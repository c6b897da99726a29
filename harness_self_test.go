package sessionshare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The clock of the tests can do what a suspended machine does; else the tests of
// rule 4 prove nothing.
func TestClockOfTestsJumps(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newClock()
		before := c.now()
		time.Sleep(time.Second)
		require.Equal(t, time.Second, c.now().Sub(before))
		c.suspend(time.Hour)
		after := c.now()
		assert.Equal(t, time.Second, after.Sub(before), "monotonic time stands still")
		assert.Equal(t, time.Hour+time.Second, after.Round(0).Sub(before.Round(0)))
		assert.Equal(t, time.Hour+time.Second, since(after, before))
		c.stall(2 * time.Hour)
		after = c.now()
		assert.Equal(t, 2*time.Hour+time.Second, after.Sub(before))
		assert.Equal(t, time.Hour+time.Second, after.Round(0).Sub(before.Round(0)), "wall time stands still")
		assert.Equal(t, 2*time.Hour+time.Second, since(after, before))
	})
}

// A cluster that nothing goes wrong with: open here, go on there.
func TestClusterOfTests(t *testing.T) {
	for _, plain := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			c := newCluster(t, 3, func(cfg *nodeConfig) { cfg.plain = plain })
			sid := c.nodes[0].open(t)
			for _, n := range c.nodes {
				w := n.post(sid, toolBody("echo"))
				require.Equal(t, 200, w.Code)
				require.Contains(t, w.Body.String(), sid)
				require.EqualValues(t, 1, n.built.Load())
			}
			s := c.nodes[1].stream(sid)
			time.Sleep(time.Minute)
			require.False(t, s.ended())
			s.cancel()
			require.True(t, s.ended())
			require.Equal(t, 204, c.nodes[2].delete(sid))
			time.Sleep(testRecheck)
			for _, n := range c.nodes {
				require.Equal(t, 404, n.list(sid))
			}
		})
	}
}
