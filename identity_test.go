package sessionshare

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// places returns a cluster whose replicas are the opener of sid, a resumed copy,
// and one that does not host it.
func places(t *testing.T, hs ...header) (c *cluster, sid string, where map[string]*node) {
	t.Helper()
	c = newCluster(t, 3)
	sid = c.nodes[0].open(t, hs...)
	require.Equal(t, 200, c.nodes[1].list(sid, hs...))
	return c, sid, map[string]*node{"opener": c.nodes[0], "resumed": c.nodes[1], "cold": c.nodes[2]}
}

// Identity: another principal, none, and another endpoint, with every method, at
// every place. The answer is the one of an unknown session, and nothing changes:
// no resume, no touch, no end.
func TestForeignRequestIsAnsweredAsUnknownAndChangesNothing(t *testing.T) {
	foreign := map[string]func(*http.Request){
		"another principal": func(req *http.Request) { req.Header.Set("X-User", "v") },
		"no principal":      func(req *http.Request) { req.Header.Del("X-User") },
		"another endpoint":  func(req *http.Request) { req.URL.Path = "/other" },
	}
	for _, place := range []string{"opener", "resumed", "cold"} {
		for who, change := range foreign {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				t.Run(place+"/"+who+"/"+method, func(t *testing.T) {
					virtual(t, func(t *testing.T) {
						_, sid, where := places(t, user("u"))
						n := where[place]
						time.Sleep(testTouch) // a touch is due
						before, built, writes := n.Stats(), n.built.Load(), n.view.writes()
						unknown := exchange(n, newRequest(method, "no-such-session-0000", pingBody, user("u")))
						req := newRequest(method, sid, pingBody, user("u"))
						change(req)
						got := exchange(n, req)
						assert.Equal(t, 404, got.status)
						assert.Equal(t, unknown, got, "foreign and unknown are one answer")
						assert.Equal(t, built, n.built.Load(), "no resume")
						assert.Equal(t, writes, n.view.writes(), "no touch, no end")
						assert.Equal(t, before.Hosted, n.Stats().Hosted)
						for name, n := range where {
							assert.Equal(t, 200, n.list(sid, user("u")), name)
						}
					})
				})
			}
		}
	}
}

// A session that was opened without principal belongs to nobody else either.
func TestNoPrincipalIsAPrincipal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, sid, where := places(t)
		for name, n := range where {
			assert.Equal(t, 404, n.list(sid, user("u")), name)
			assert.Equal(t, 200, n.list(sid), name)
		}
	})
}

// A foreign GET or POST neither keeps a session alive nor displaces its stream.
func TestForeignRequestExtendsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t, user("u"))
		for range 40 {
			time.Sleep(testIdle / 40)
			a.list(sid, user("v"))
			b.list(sid, user("v"))
		}
		assert.Equal(t, 404, a.list(sid, user("u")))
		assert.Equal(t, 404, b.list(sid, user("u")))

		sid = a.open(t, user("u"))
		stream := a.stream(sid, user("u"))
		require.Equal(t, 404, a.do("GET", sid, "", user("v")).Code)
		assert.False(t, stream.ended())
		stream.cancel()
		<-stream.done
	})
}

// A foreign request says nothing about a session by how long it takes, and no
// foreign request is held: the store was readable.
func TestForeignRequestIsNotHeld(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, sid, where := places(t, user("u"))
		for name, n := range where {
			began := time.Now()
			require.Equal(t, 404, n.post(sid, greetBody, user("v")).Code)
			assert.Zero(t, time.Since(began), name)
		}
	})
}

// A principal stays the same through a token refresh: the library never sees the
// token.
func TestTokenRefreshIsNotNoticed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, sid, where := places(t, user("u"))
		for name, n := range where {
			assert.Equal(t, 200, n.list(sid, header{"X-User", "u", "Authorization", "Bearer " + name}))
		}
	})
}

// Callbacks answer with errors: a StatusError as it is, ErrGone is 404, all else
// is doubt, which ends nothing and is held where clients do not ask again.
func TestCallbacksInDoubt(t *testing.T) {
	teapot := &StatusError{Status: 418, Header: http.Header{"x-why": {"tea"}}, Err: errors.New("short and stout")}
	for name, tc := range map[string]struct {
		err    error
		status int
		get    int
	}{
		"StatusError":          {teapot, 418, 418},
		"StatusError wrapped":  {errors.Join(errors.New("x"), teapot), 418, 418},
		"StatusError nonsense": {&StatusError{Status: 1}, 500, 500},
		"ErrGone":              {ErrGone, 404, 404},
		"doubt":                {errors.New("registry not loaded"), 503, 200},
	} {
		for _, callback := range []string{"Principal", "Endpoint"} {
			t.Run(name+"/"+callback, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					var fail error
					c := newCluster(t, 2, func(cfg *nodeConfig) {
						principal, endpoint := cfg.opts.Principal, cfg.opts.Endpoint
						cfg.opts.Principal = func(req *http.Request) (string, error) {
							if callback == "Principal" && fail != nil {
								return "", fail
							}
							return principal(req)
						}
						cfg.opts.Endpoint = func(req *http.Request) (Endpoint, error) {
							if callback == "Endpoint" && fail != nil {
								return Endpoint{}, fail
							}
							return endpoint(req)
						}
					})
					sid := c.nodes[0].open(t)
					fail = tc.err
					for _, n := range c.nodes {
						began := time.Now()
						w := n.post(sid, callBody("tools/list", "{}"))
						assert.Equal(t, tc.status, w.Code)
						assert.Zero(t, time.Since(began), "a call gets one attempt")
						if tc.status == 418 {
							assert.Equal(t, "tea", w.Header().Get("X-Why"))
							assert.Contains(t, w.Body.String(), "short and stout")
						}
						assert.Equal(t, tc.status, n.delete(sid))
						get := n.do("GET", sid, "")
						assert.Equal(t, tc.get, get.Code)
						if tc.get == 200 {
							assert.Contains(t, get.Body.String(), "id: ~")
							assert.Equal(t, DefaultHoldTimeout, time.Since(began), "a GET is held")
						}
						assert.Equal(t, tc.status, n.post("", initBody).Code)
					}
					fail = nil
					for _, n := range c.nodes {
						assert.Equal(t, 200, n.list(sid), "nothing ended")
					}
				})
			})
		}
	}
}

// A registry that is loaded while a message waits lets it through.
func TestHeldMessageGoesThroughWhenDoubtEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var loading atomic.Bool
		c := newCluster(t, 2, func(cfg *nodeConfig) {
			endpoint := cfg.opts.Endpoint
			cfg.opts.Endpoint = func(req *http.Request) (Endpoint, error) {
				if loading.Load() {
					return Endpoint{}, errors.New("registry not loaded")
				}
				return endpoint(req)
			}
		})
		b := c.nodes[1]
		sid := c.nodes[0].open(t)
		loading.Store(true)
		note := b.start("POST", sid, greetBody)
		time.Sleep(5 * time.Second)
		require.False(t, note.ended())
		loading.Store(false)
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		require.True(t, note.ended())
		status, _ := note.result()
		assert.Equal(t, 202, status)
		assert.EqualValues(t, 1, b.Stats().Held)
	})
}
