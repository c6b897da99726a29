package sessionshare

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A simSession is what the model knows of one session. The simulation's mu guards
// it.
type simSession struct {
	id, digest string
	owner      string
	endpoint   Endpoint
	opened     time.Time
	opener     *simNode

	closing bool      // somebody was told to close it: it may be gone at any time
	gone    time.Time // its mark was stored, or its owner's rights were revoked; zero: neither
	expired time.Time // neither record nor mark is there since then, and all replicas know or are in doubt
	dead    bool      // no record and no copy is left: nothing can bring it back

	stored  bool      // its record was there when the model looked last
	lost    time.Time // when the store lost its record last
	serving map[*simNode]time.Time
	over    map[*simNode]bool // replicas that were told themselves that it is closed
	flights int               // requests under way
}

func (s *simSession) String() string {
	if s == nil {
		return "an unknown session"
	}
	return fmt.Sprintf("%s of %s on %v", s.digest[:8], s.owner, s.endpoint)
}

// A simFlight is one request, from its start to the model's verdict.
type simFlight struct {
	kind    string // call, long, stream, note, delete, foreign, foreign delete, open
	n       *simNode
	s       *simSession // of open: what came of it
	p       *pending
	began   time.Time
	life    int      // of the replica when it began: a restart makes it another
	serving Endpoint // what the replica served then
	hosted  bool     // the replica hosted the session then
	stored  bool     // the record was there then
	hungUp  bool
	until   time.Time // the client hangs up then; zero: never
}

func (f *simFlight) String() string {
	return fmt.Sprintf("%s at replica %d, begun at %s, %v", f.kind, f.n.index, f.n.sim.at(f.began), f.s)
}

// short reports whether the request must be answered soon.
func (f *simFlight) short() bool { return f.kind != "long" && f.kind != "stream" }

// simAnswerBound is the longest that a short request can take: it is held, and
// its last attempt begins just before that is over.
const simAnswerBound = DefaultHoldTimeout + factoryTime + 8*simStoreTimeout

// served reports whether an answer means that the session was served.
func (f *simFlight) served() bool {
	status, body := f.p.w.result()
	switch f.kind {
	case "call", "long", "foreign":
		return status == http.StatusOK && strings.Contains(body, `"result"`)
	case "note":
		return status == http.StatusAccepted
	}
	return false
}

// judge checks the answer of a request that is over. mu is held.
func (sim *simulation) judge(f *simFlight) {
	status, body := f.p.w.result()
	s, now := f.s, time.Now()
	if f.hungUp {
		return
	}
	switch status {
	case 200, 202, 204, 404, 503:
	default:
		sim.violated("%v was answered %d %s", f, status, body)
	}
	same := f.life == f.n.life && f.serving == f.n.serves(s.endpoint.Name)
	if strings.HasPrefix(f.kind, "foreign") {
		if status != http.StatusNotFound && status != http.StatusServiceUnavailable {
			sim.violated("a %v was answered %d", f, status)
		}
		return
	}
	if f.served() {
		sim.judgeServed(f, same)
		s.serving[f.n] = now
	}
	if f.kind == "long" && status == http.StatusOK && !f.served() && same {
		sim.violated("%v was cut: %s", f, body)
	}
	if status == http.StatusNotFound && same {
		sim.judgeGone(f)
	}
	if f.kind == "delete" && same && (status == http.StatusNoContent || f.hosted && status == http.StatusServiceUnavailable) {
		s.over[f.n] = true
		f.n.closedAt[s] = now
	}
}

// judgeServed checks that the session of f could still be served when f began.
func (sim *simulation) judgeServed(f *simFlight, same bool) {
	s, n := f.s, f.n
	switch {
	case s.dead && f.began.After(s.lost):
		sim.violated("rule 2: %v was served, but nothing was left of it", f)
	case !s.expired.IsZero() && !f.began.Before(s.expired):
		sim.violated("rule 3 or 4: %v was served, though record and marks are gone", f)
	case same && f.serving != s.endpoint:
		sim.violated("rule 7: %v was served by a replica that serves %v", f, f.serving)
	case same && s.over[n] && !f.overlaps():
		sim.violated("rule 1: %v was served where it was closed", f)
	}
	if late := sim.tooLate(f); late > 0 {
		sim.violated("rule 1 or 3: %v was served %v after the last moment", f, late)
	}
}

// overlaps reports whether the session was closed on this replica only after f
// had begun.
func (f *simFlight) overlaps() bool { return !f.n.closedAt[f.s].Before(f.began) }

// tooLate returns by how much f began after the last moment at which its session
// could be served on its replica: RecheckInterval and StoreTimeout after the mark
// where the store can be read (rule 1), UnverifiedLimit else (rule 3).
func (sim *simulation) tooLate(f *simFlight) time.Duration {
	if f.s.gone.IsZero() {
		return 0
	}
	gone := latest(f.s.gone, f.s.opened)
	last := gone.Add(simUnverified + simStoreTimeout)
	if h := f.n.healthy; !h.IsZero() && f.life == f.n.life {
		if rule1 := latest(gone, h).Add(sim.recheck() + simStoreTimeout); rule1.Before(last) {
			last = rule1
		}
	}
	return f.began.Sub(last)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// judgeGone checks that f could get a 404: it strands its client.
func (sim *simulation) judgeGone(f *simFlight) {
	s, n := f.s, f.n
	if s.closing || s.dead || f.kind == "open" {
		return
	}
	if f.serving != s.endpoint {
		// The replica has moved on, or it lags and must wait before it says so.
		if f.stored && s.stored && f.serving.Incarnation < s.endpoint.Incarnation && time.Since(s.opened) < lagTime && n.jumped.Before(s.opened) {
			sim.violated("rule 7: %v got 404 from a replica that lags", f)
		}
		return
	}
	if f.stored && s.stored && s.lost.Before(f.began) {
		sim.violated("%v got 404, but its record is in the store and no mark", f)
	}
	warm, ok := s.serving[n]
	if f.hosted && ok && f.began.Sub(warm) < simUnverified/2 && n.calm(warm) {
		sim.violated("%v got 404 from a warm copy that nothing happened to", f)
	}
}

// calm reports whether nothing has disturbed the replica since t.
func (n *simNode) calm(t time.Time) bool {
	return !n.healthy.IsZero() && n.healthy.Before(t) && n.jumped.Before(t) && n.moved.Before(t)
}

// look compares the model with the store. mu is held.
func (sim *simulation) look() {
	now := time.Now()
	entries := sim.c.backend.dump()
	for _, s := range sim.sessions {
		_, s.stored = entries[DefaultKeyPrefix+keySession+s.digest]
		for _, mark := range []struct {
			key string
			ttl time.Duration
		}{
			{DefaultKeyPrefix + keyClosed + s.digest, 2 * simIdle},
			{simEndpointKey(s.endpoint), minEndpointMark},
		} {
			if e, ok := entries[mark.key]; ok {
				s.stored = false // a marked record is none
				if at := e.expires.Add(-mark.ttl); s.gone.IsZero() || at.Before(s.gone) {
					s.gone = at
				}
			}
		}
		if !s.stored && !s.dead && s.flights == 0 && now.After(sim.lateUntil) && !sim.hostedAnywhere(s) {
			s.dead, s.lost = true, now
		}
	}
}

func (sim *simulation) hostedAnywhere(s *simSession) bool {
	for _, n := range sim.nodes {
		if n.hosts(s) {
			return true
		}
	}
	return false
}

// watch checks what must hold of requests that are under way. mu is held.
func (sim *simulation) watch() {
	now := time.Now()
	for _, f := range sim.flights {
		s, n, age := f.s, f.n, now.Sub(f.began)
		if f.life != n.life {
			if age > simAnswerBound && f.short() {
				sim.violated("%v is not answered on a replica that is gone", f)
			}
			continue
		}
		if f.short() && age > simAnswerBound {
			sim.violated("%v is not answered after %v", f, age)
		}
		if f.kind == "stream" && !s.gone.IsZero() {
			sim.watchStream(f, now)
		}
		busySince := latest(latest(f.began, n.healthy), latest(n.jumped, s.lost))
		if !f.short() && !s.closing && !s.stored && n.calm(busySince.Add(time.Nanosecond)) &&
			now.Sub(busySince) > simBusyBound && n.serves(s.endpoint.Name) == s.endpoint && n.hosts(s) {
			sim.violated("rule 5: %v keeps its session busy, but the record is not in the store", f)
		}
	}
}

// simBusyBound is when the background recheck must have touched or saved a record.
const simBusyBound = busyRecheck + simTouch + saveDelayMax + 4*simStoreTimeout + sweepTick

func (sim *simulation) watchStream(f *simFlight, now time.Time) {
	gone := latest(f.s.gone, f.began)
	last := gone.Add(simUnverified + busyRecheck)
	if h := f.n.healthy; !h.IsZero() {
		if rule1 := latest(gone, h).Add(time.Minute); rule1.Before(last) {
			last = rule1
		}
	}
	if now.After(last) {
		sim.violated("rule 1 or 3: %v is still open %v after the last moment", f, now.Sub(last))
	}
}
