package sessionshare

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// step makes one random step and lets some time pass.
func (sim *simulation) step() {
	for range 1 + sim.rng.IntN(3) {
		sim.act()
	}
	switch p := sim.rng.IntN(20); {
	case p < 4: // nothing happens in between
	case p < 10:
		sim.pass(time.Duration(sim.rng.IntN(3000)) * time.Millisecond)
	case p < 15:
		sim.pass(time.Duration(sim.rng.IntN(30)) * time.Second)
	case p < 19:
		sim.pass(time.Duration(30+sim.rng.IntN(150)) * time.Second)
	default:
		sim.pass(simIdle/2 + time.Duration(sim.rng.IntN(int(simIdle))))
	}
}

// pass lets time pass. The model looks every few seconds.
func (sim *simulation) pass(d time.Duration) {
	const tick = 5 * time.Second
	for ; d > tick; d -= tick {
		time.Sleep(tick)
		sim.settle()
	}
	time.Sleep(d)
}

// act does one thing to a random client, replica or endpoint.
func (sim *simulation) act() {
	c := sim.clients[sim.rng.IntN(len(sim.clients))]
	n := sim.nodes[sim.rng.IntN(len(sim.nodes))]
	s := c.session
	if s == nil {
		sim.open(n, c)
		return
	}
	switch p := sim.rng.IntN(100); {
	case p < 30:
		for range []int{1, 1, 2, 4}[sim.rng.IntN(4)] {
			sim.send("call", n, s, callBody("tools/list", "{}"))
			if sim.rng.IntN(2) == 0 {
				n = sim.nodes[sim.rng.IntN(len(sim.nodes))]
			}
		}
	case p < 36:
		seconds := []int{1, 20, 120, 900}[sim.rng.IntN(4)]
		f := sim.send("long", n, s, callBody("tools/call", fmt.Sprintf(`{"name":"run","arguments":{"seconds":%d}}`, seconds)))
		if sim.rng.IntN(4) == 0 {
			f.until = time.Now().Add(time.Duration(sim.rng.IntN(seconds)) * time.Second)
		}
	case p < 42:
		f := sim.send("stream", n, s, "")
		f.until = time.Now().Add(time.Duration(sim.rng.IntN(900)) * time.Second)
	case p < 46:
		sim.send("note", n, s, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	case p < 50:
		sim.send("foreign", n, s, callBody("tools/list", "{}"))
	case p < 53:
		sim.send("foreign delete", n, s, "")
	case p < 59:
		sim.closing(s)
		sim.send("delete", n, s, "")
	case p < 61:
		sim.closeSession(n, s)
	case p < 63:
		sim.closeEndpoint(n, s.endpoint)
	case p < 68:
		sim.catchUpOne(n)
	case p < 70:
		sim.revoke(c, s)
	case p < 82:
		sim.fault(n)
	case p < 90:
		sim.heal([]*simNode{n})
	case p < 93:
		sim.restart(n)
	case p < 95:
		sim.jump(n)
	case p < 97:
		sim.loseRecord(s)
	default:
		sim.oblivion(n)
	}
}

// send sends a request of a session on a goroutine of its own.
func (sim *simulation) send(kind string, n *simNode, s *simSession, body string) *simFlight {
	method := http.MethodPost
	switch kind {
	case "stream":
		method = http.MethodGet
	case "delete", "foreign delete":
		method = http.MethodDelete
	}
	owner := s.owner
	if method != http.MethodGet && len(kind) > 6 && kind[:7] == "foreign" {
		owner = "mallory"
	}
	sim.mu.Lock()
	sim.look()
	f := &simFlight{
		kind: kind, n: n, s: s, began: time.Now(), life: n.life,
		serving: n.serves(s.endpoint.Name), hosted: n.hosts(s), stored: s.stored,
	}
	s.flights++
	sim.note("%v", f)
	sim.mu.Unlock()
	f.p = n.start(method, s.id, body, user(owner), header{"X-Endpoint", s.endpoint.Name})
	sim.flights = append(sim.flights, f)
	return f
}

// open has a client open a session.
func (sim *simulation) open(n *simNode, c *simClient) {
	name := []string{"/a", "/b"}[sim.rng.IntN(2)]
	f := &simFlight{kind: "open", n: n, began: time.Now(), life: n.life, serving: n.serves(name)}
	f.s = &simSession{
		owner: c.user(), endpoint: f.serving, opened: f.began, opener: n, digest: "unopened",
		serving: map[*simNode]time.Time{}, over: map[*simNode]bool{},
	}
	f.p = n.start(http.MethodPost, "", initBody, user(c.user()), header{"X-Endpoint", name})
	c.session = f.s // nobody uses it before it has an ID
	<-f.p.done
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("%v", f)
	sim.landOpen(f)
	if f.s.id == "" {
		c.session = nil
	}
}

// landOpen takes a new session into the model. mu is held.
func (sim *simulation) landOpen(f *simFlight) {
	switch status, body := f.p.w.result(); status {
	case http.StatusOK:
		s := f.s
		s.id = f.p.w.Header().Get(headerSessionID)
		s.digest = string(digestOf(s.id))
		s.serving[f.n] = time.Now()
		sim.sessions = append(sim.sessions, s)
		sim.byDigest[s.digest] = s
		if sim.endpointsClosing[simEndpointKey(s.endpoint)] {
			s.closing = true
		}
		sim.note("   opened %v", s)
	case http.StatusNotFound:
		if !sim.endpointsClosing[simEndpointKey(f.s.endpoint)] {
			sim.violated("rule 7: %v got 404, but its endpoint is open", f)
		}
	case http.StatusServiceUnavailable:
	default:
		sim.violated("%v was answered %d %s", f, status, body)
	}
}

// closing tells the model that a session may be gone from now on.
func (sim *simulation) closing(s *simSession) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	s.closing = true
}

func (sim *simulation) closeSession(n *simNode, s *simSession) {
	sim.closing(s)
	err := n.CloseSession(context.Background(), s.id)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("CloseSession at replica %d of %v: %v", n.index, s, err)
	s.over[n] = true
	n.closedAt[s] = time.Now()
}

// closeEndpoint deletes an endpoint and creates it anew on one replica; the others
// follow later.
func (sim *simulation) closeEndpoint(n *simNode, e Endpoint) {
	if n.serves(e.Name) != e {
		return
	}
	sim.mu.Lock()
	sim.endpointsClosing[simEndpointKey(e)] = true
	for _, s := range sim.sessions {
		s.closing = s.closing || s.endpoint == e
	}
	sim.mu.Unlock()
	if sim.rng.IntN(2) == 0 {
		defer n.move(e.Name) // slow deletion
	} else {
		n.move(e.Name)
	}
	err := n.CloseEndpoint(context.Background(), e)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("CloseEndpoint at replica %d of %v: %v", n.index, e, err)
	for _, s := range sim.sessions {
		if s.endpoint == e {
			s.over[n] = true
			n.closedAt[s] = time.Now()
		}
	}
}

// move makes the replica serve the next incarnation.
func (n *simNode) move(name string) {
	n.incs[simEndpoint(name)].Add(1)
	n.moved = time.Now()
}

// catchUpOne lets a replica load what others serve.
func (sim *simulation) catchUpOne(n *simNode) {
	for i := range n.incs {
		for _, other := range sim.nodes {
			if v := other.incs[i].Load(); v > n.incs[i].Load() {
				n.incs[i].Store(v)
				n.moved = time.Now()
			}
		}
	}
}

func (sim *simulation) catchUp() {
	for _, n := range sim.nodes {
		sim.catchUpOne(n)
	}
}

// revoke takes a client's rights away: Check says so on every replica.
func (sim *simulation) revoke(c *simClient, s *simSession) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("revoked: %s", c.user())
	for _, other := range sim.sessions {
		if other.owner == c.user() {
			other.closing = true
			if other.gone.IsZero() {
				other.gone = time.Now()
			}
		}
	}
	sim.nodes[0].revoked.Store(c.user(), true)
	c.renamed++
	if sim.rng.IntN(2) == 0 {
		c.session = nil
	}
}
