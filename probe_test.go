package sessionshare

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A probed store is cuttable, and its next subscription is another one than the
// replica expects.
type probed struct {
	*cuttable
	next func(ctx context.Context) // called before it subscribes, once set
}

func (s *probed) Subscribe(ctx context.Context, channels []string, deliver func(string, []byte)) error {
	if s.next != nil {
		s.next(ctx)
	}
	return s.cuttable.Subscribe(ctx, channels, deliver)
}

// A probe that comes back late, of a subscription that is gone, does not pass for a
// sign of the next one: else 30 s hold while no hint can come.
func TestLateProbeIsNoSign(t *testing.T) {
	for name, next := range map[string]func(context.Context){
		"the next subscription hangs":   func(ctx context.Context) { <-ctx.Done() },
		"the next subscription is slow": func(context.Context) { time.Sleep(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 { // pauses are random
				virtual(t, func(t *testing.T) { testLateProbe(t, next) })
			}
		})
	}
}

func testLateProbe(t *testing.T, next func(context.Context)) {
	var stores []*probed
	told := &told{by: map[*node][]string{}}
	c := newCluster(t, 2, told.asking, func(cfg *nodeConfig) {
		s := &probed{cuttable: &cuttable{hintingStore: hintingStore{cfg.n.view}}}
		s.delay.Store(int64(20 * time.Millisecond)) // several probes are under way at a time
		stores = append(stores, s)
		cfg.opts.Store = s
		cfg.opts.RecheckInterval = 0
	})
	a, b := c.nodes[0], c.nodes[1]
	sid := a.openAsking(t)
	c.everywhere(sid)
	time.Sleep(5 * time.Second)
	require.True(t, b.hints.up.Load())
	stores[1].next = next
	stores[1].sever()
	time.Sleep(100 * time.Millisecond)
	require.False(t, b.hints.up.Load())
	require.Equal(t, 200, b.list(sid))
	began := time.Now()
	require.Equal(t, 204, a.delete(sid))
	until(t, DefaultRecheckInterval+DefaultStoreTimeout, "the close is found out", func() bool { return b.list(sid) == 404 })
	require.Less(t, time.Since(began), DefaultRecheckInterval+DefaultStoreTimeout)
}
