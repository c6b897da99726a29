package sessionshare

import (
	"context"
	"testing/synctest"
	"time"
)

// What happens to replicas and to the store.

// fault makes the store of one replica or of all misbehave.
func (sim *simulation) fault(n *simNode) {
	nodes := []*simNode{n}
	if sim.rng.IntN(4) == 0 {
		nodes = sim.nodes
	}
	kind := simFaults[sim.rng.IntN(len(simFaults))]
	checks := sim.rng.IntN(10) == 0
	sim.mu.Lock()
	defer sim.mu.Unlock()
	for _, n := range nodes {
		n.healthy = time.Time{}
		if checks {
			sim.note("replica %d: Check is in doubt", n.index)
			n.doubts.Store(true)
			continue
		}
		sim.note("replica %d: %s", n.index, kind.name)
		n.fault = kind
		n.view.set(kind.make(sim.bad))
		sim.lateUntil = latest(sim.lateUntil, time.Now().Add(simIdle*10)) // until it is healed
	}
}

func (sim *simulation) heal(nodes []*simNode) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	for _, n := range nodes {
		if !n.healthy.IsZero() {
			continue
		}
		sim.note("replica %d: healed", n.index)
		n.view.set(simHealthy(sim.bad))
		n.doubts.Store(false)
		n.healthy, n.fault = time.Now(), simFault{}
	}
	sim.lateUntil = time.Now().Add(simLate + 2*simStoreTimeout + time.Second)
	for _, n := range sim.nodes {
		if n.fault.make != nil {
			sim.lateUntil = time.Now().Add(simIdle * 10)
		}
	}
}

// restart ends a replica, gracefully or as a crash does, and starts it again.
func (sim *simulation) restart(n *simNode) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	crash := sim.rng.IntN(2) == 0
	if crash {
		n.view.down()
		cancel()
	}
	err := n.Shutdown(ctx)
	cancel()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("replica %d restarts (crash: %v): %v", n.index, crash, err)
	n.fault = simFault{}
	for _, s := range sim.sessions {
		delete(s.serving, n)
		delete(s.over, n)
	}
	sim.start(n)
	sim.lateUntil = latest(sim.lateUntil, time.Now().Add(simLate+2*simStoreTimeout))
}

// jump is a machine that was suspended, or a process that stood still.
func (sim *simulation) jump(n *simNode) {
	d := time.Duration(1+sim.rng.IntN(int(2*simUnverified/time.Second))) * time.Second
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if sim.rng.IntN(2) == 0 {
		n.clock.suspend(d)
		sim.note("replica %d was suspended for %v", n.index, d)
	} else {
		n.clock.stall(d)
		sim.note("replica %d stood still for %v", n.index, d)
	}
	n.jumped = time.Now()
}

// loseRecord has the store lose the record of an open session.
func (sim *simulation) loseRecord(s *simSession) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.note("the store loses the record of %v", s)
	sim.c.backend.lose(keySession + s.digest)
	s.lost = time.Now()
}

// oblivion is a replica that sleeps for so long that a close, with its mark, is
// history when it wakes: neither record nor mark is there (rules 3 and 4).
func (sim *simulation) oblivion(n *simNode) {
	if time.Now().Before(sim.lateUntil) {
		return // or a late write would come after the mark has expired: that takes a day
	}
	synctest.Wait()
	other := sim.nodes[(n.index+1)%len(sim.nodes)]
	for _, s := range sim.sessions {
		if sim.rng.IntN(3) == 0 && sim.onlyHost(n, s) {
			sim.closeSession(other, s)
		}
	}
	sim.mu.Lock()
	sim.look()
	sim.note("replica %d sleeps until all marks have expired", n.index)
	var asleep []*simSession
	for _, s := range sim.sessions {
		if s.gone.IsZero() || !sim.onlyHost(n, s) {
			continue
		}
		sim.note("   and wakes with %v", s)
		sim.c.backend.lose(s.digest)
		s.expired = time.Now()
		asleep = append(asleep, s)
	}
	sim.mu.Unlock()
	// A store that lost both needs less time for it.
	d := []time.Duration{simUnverified + time.Minute, 2 * simIdle}[sim.rng.IntN(2)]
	if sim.rng.IntN(2) == 0 {
		n.clock.suspend(d)
	} else {
		n.clock.stall(d)
	}
	n.jumped = time.Now()
	for _, s := range asleep {
		sim.send("call", n, s, callBody("tools/list", "{}")) // before the sweeper has seen what time it is
	}
}

// onlyHost reports whether no other replica can still be about to serve s.
func (sim *simulation) onlyHost(n *simNode, s *simSession) bool {
	for _, other := range sim.nodes {
		if other != n && other.hosts(s) {
			return false
		}
	}
	for _, f := range sim.flights {
		if f.s == s && f.n != n {
			return false // it may be resuming s
		}
	}
	return n.hosts(s)
}

// hangUpAll ends what is still under way.
func (sim *simulation) hangUpAll() {
	for _, f := range sim.flights {
		f.p.cancel()
	}
}
