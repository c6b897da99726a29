package sessionshare

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Rule 7: CloseEndpoint ends the sessions of one incarnation, here at once,
// elsewhere within RecheckInterval, and spares those of the next one, also of one
// made in the same second by another replica while the first still deletes.
func TestCloseEndpointEndsOneIncarnation(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 3, plain)
		a, b, lag := c.nodes[0], c.nodes[1], c.nodes[2]
		old := a.open(t)
		require.Equal(t, 200, b.list(old))
		require.Equal(t, 200, lag.list(old))
		b.incarnate("second") // recreated there, before the deletion is through here
		fresh := b.open(t)
		require.NoError(t, a.CloseEndpoint(context.Background(), Endpoint{"/mcp", "first"}))
		assert.Equal(t, 404, a.list(old), "here at once")
		assert.Equal(t, 404, a.post("", initBody).Code, "no session opens on it here")
		time.Sleep(testRecheck)
		assert.Equal(t, 404, lag.list(old))
		assert.Equal(t, 404, b.list(old))
		assert.Equal(t, 200, b.list(fresh), "the next incarnation is spared")
		a.incarnate("second")
		lag.incarnate("second")
		for range 3 {
			for _, n := range c.nodes {
				assert.Equal(t, 200, n.list(fresh))
				assert.Equal(t, 404, n.list(old))
			}
			time.Sleep(testIdle - testTouch)
		}
	})
}

// A replica that has not heard of the deletion opens no session on the deleted
// incarnation, if it can read; if it cannot, the first recheck finds out.
func TestOpenOnAClosedIncarnation(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 3, plain)
		a, b, lag := c.nodes[0], c.nodes[1], c.nodes[2]
		require.NoError(t, a.CloseEndpoint(context.Background(), Endpoint{"/mcp", "first"}))
		w := lag.post("", initBody)
		assert.Equal(t, 404, w.Code)
		assert.Zero(t, lag.built.Load())
		lag.view.partition(false, true)
		sid := lag.initialize(t)
		lag.view.heal()
		time.Sleep(testRecheck)
		assert.Equal(t, 404, lag.list(sid))
		assert.Equal(t, 404, b.list(sid))
	})
}

// CloseEndpoint with the store down: over here at once, retried in the background,
// for nobody will call again.
func TestCloseEndpointWithTheStoreDown(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		a.view.down()
		e := Endpoint{"/mcp", "first"}
		require.Error(t, a.CloseEndpoint(context.Background(), e))
		assert.Equal(t, 404, a.list(sid))
		assert.Equal(t, 404, a.post("", initBody).Code)
		time.Sleep(5 * time.Minute)
		require.Equal(t, 200, b.list(sid))
		a.view.heal()
		time.Sleep(saveDelayMax + 2*time.Second)
		assert.Equal(t, 404, b.list(sid))
		assert.Len(t, c.backend.keys("endpoint."), 1)
		time.Sleep(47 * time.Hour)
		assert.Len(t, c.backend.keys("endpoint."), 1, "the mark lives at least 48 h")
	})
}

// CloseEndpoint needs an incarnation, or it would end sessions of endpoints to
// come.
func TestCloseEndpointNeedsAnIncarnation(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		assert.Error(t, c.nodes[0].CloseEndpoint(context.Background(), Endpoint{Name: "/mcp"}))
		assert.Zero(t, c.nodes[0].view.count())
	})
}

// A replica that has not loaded the incarnation yet answers 503, and serves the
// session as soon as it has; after 30 s it is 404. A message is held meanwhile.
func TestLaggingReplica(t *testing.T) {
	for name, late := range map[string]bool{"in time": false, "too late": true} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, plain setup) {
				c := newCluster(t, 2, plain)
				a, lag := c.nodes[0], c.nodes[1]
				a.incarnate("second")
				sid := a.open(t)
				assert.Equal(t, 503, lag.list(sid))
				assert.Equal(t, 503, lag.delete(sid))
				note := lag.start("POST", sid, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
				time.Sleep(10 * time.Second)
				assert.Equal(t, 503, lag.list(sid))
				require.False(t, note.ended())
				if late {
					time.Sleep(20 * time.Second)
					assert.Equal(t, 404, lag.list(sid))
					assert.Equal(t, 200, a.list(sid), "there it goes on")
					status, _ := note.result()
					assert.Equal(t, 503, status)
					return
				}
				lag.incarnate("second")
				status, _ := note.result()
				assert.Equal(t, 202, status)
				assert.Equal(t, 200, lag.list(sid))
			})
		})
	}
}

// A session of an incarnation that was deleted before the lagging replica loaded
// it is 404 at once: a mark says so.
func TestLaggingReplicaReadsTheMark(t *testing.T) {
	bothStores(t, func(t *testing.T, plain setup) {
		c := newCluster(t, 2, plain)
		a, lag := c.nodes[0], c.nodes[1]
		a.incarnate("second")
		sid := a.open(t)
		require.NoError(t, a.CloseEndpoint(context.Background(), Endpoint{"/mcp", "second"}))
		assert.Equal(t, 404, lag.list(sid))
	})
}

// A host whose own endpoint has moved on ends its copies: endpoints never go
// back, so nobody must be asked.
func TestEndpointThatMovesOnEndsItsCopies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid, other := a.open(t), a.open(t)
		stream := a.stream(other)
		a.incarnate("second")
		assert.Equal(t, 404, a.list(sid))
		assert.Zero(t, a.Stats().Hosted, "all of them")
		assert.True(t, stream.ended())
		assert.Equal(t, 404, a.list(other))
		assert.Equal(t, 200, b.list(sid), "b has not moved")
		assert.Empty(t, c.backend.keys("closed."), "rule 6")
		assert.Empty(t, c.backend.keys("endpoint."), "rule 6")
	})
}

// A request whose endpoint was looked up just before this replica moved on, and
// that comes to the library after it, is late, not news: it must not end the
// sessions of the new incarnation.
func TestLateRequestOfAnOldIncarnation(t *testing.T) {
	virtual(t, func(t *testing.T) {
		entered, goOn := make(chan struct{}), make(chan struct{})
		c := newCluster(t, 1, func(cfg *nodeConfig) {
			endpoint := cfg.opts.Endpoint
			cfg.opts.Endpoint = func(req *http.Request) (Endpoint, error) {
				e, err := endpoint(req)
				if req.Header.Get("X-Late") != "" {
					close(entered)
					<-goOn
				}
				return e, err
			}
		})
		a := c.nodes[0]
		old := a.open(t)
		a.incarnate("second")
		fresh := a.open(t)
		a.incarnate("first")
		late := a.start("POST", fresh, pingBody, header{"X-Late", "1"})
		<-entered
		a.incarnate("second")
		require.Equal(t, 200, a.list(fresh))
		close(goOn)
		status, _ := late.result()
		assert.NotEqual(t, 404, status, "the session is there, and 404 strands its client")
		assert.Equal(t, 200, a.list(fresh), "nothing was ended")
		assert.NotEmpty(t, a.open(t))
		assert.Equal(t, 404, a.list(old))
	})
}

// Incarnations are told apart from names: no two endpoints share a mark.
func TestEndpointKeysDiffer(t *testing.T) {
	k := keyspace{"p."}
	seen := map[string]Endpoint{}
	for _, e := range []Endpoint{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", ""}, {"", "a"}, {"a\x01", "b"}, {"A", "b"}} {
		key := k.endpoint(e)
		assert.Empty(t, seen[key])
		seen[key] = e
	}
}

// Many replicas, deletions and recreations at once: a session of the incarnation
// that is there last is never lost, one of an earlier one is never served.
func TestEndpointIsDeletedAndRecreatedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		var old []string
		for i := range 10 {
			name := string(rune('a' + i))
			for _, n := range c.nodes {
				n.incarnate(name)
			}
			fresh := c.nodes[i%3].open(t)
			var wg sync.WaitGroup
			for _, n := range c.nodes {
				wg.Go(func() { assert.Equal(t, 200, n.list(fresh)) })
				for _, sid := range old {
					wg.Go(func() { assert.Equal(t, 404, n.list(sid)) })
				}
				if i > 0 {
					wg.Go(func() {
						assert.NoError(t, n.CloseEndpoint(context.Background(), Endpoint{"/mcp", string(rune('a' + i - 1))}))
					})
				}
			}
			wg.Wait()
			for _, n := range c.nodes {
				assert.Equal(t, 200, n.list(fresh))
			}
			old = append(old, fresh)
		}
	})
}
