package sessionshare

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// lags remembers since when this replica has been unable to serve sessions that
// others may be able to serve: it has not loaded their endpoint's incarnation
// yet, or runs an older version. A deploy is over after lagTime; then the
// session is gone.
type lags struct {
	mu    sync.Mutex // guards all below
	since map[string]lag

	// incarnations are those that each endpoint had here, the last one current.
	incarnations map[string][]string
}

var errLate = errors.New("sessionshare: this replica has moved on to another incarnation since the request was looked at")

type lag struct{ first, last time.Time }

const (
	maxLags         = 10_000 // sessions and endpoints remembered
	maxIncarnations = 16     // of one endpoint
)

// doubt returns doubt for the first lagTime in which the session could not be
// served, then ErrGone.
func (l *lags) doubt(id string, now time.Time, why string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.since[id]
	if !ok || since(now, e.last) > 10*lagTime {
		e.first = now
		l.makeRoom(now)
	}
	e.last = now
	if l.since == nil {
		l.since = map[string]lag{}
	}
	l.since[id] = e
	if since(now, e.first) >= lagTime {
		return ErrGone
	}
	return unsure("this replica lags", errors.New(why))
}

// makeRoom forgets what nobody asked for lately. l.mu is held.
func (l *lags) makeRoom(now time.Time) {
	if len(l.since) < maxLags {
		return
	}
	for id, e := range l.since {
		if since(now, e.last) > lagTime || len(l.since) >= 2*maxLags {
			delete(l.since, id)
		}
	}
}

// clear forgets a lag that is over.
func (l *lags) clear(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, id)
}

// serves notes what this replica serves now under e's name, and reports whether
// that is another incarnation than before.
func (l *lags) serves(e Endpoint) (moved bool) {
	if e.Incarnation == "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.incarnations[e.Name]
	if slices.Contains(known, e.Incarnation) {
		return false // the current one, or a request that was long on its way
	}
	if len(known) == 0 && len(l.incarnations) >= maxLags {
		return false
	}
	if len(known) >= maxIncarnations {
		known = known[1:]
	}
	if l.incarnations == nil {
		l.incarnations = map[string][]string{}
	}
	l.incarnations[e.Name] = append(known, e.Incarnation)
	return len(known) > 0
}

// passed reports whether this replica once served e and now serves another
// incarnation: endpoints never go back.
func (l *lags) passed(e Endpoint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.incarnations[e.Name]
	return len(known) > 0 && known[len(known)-1] != e.Incarnation && slices.Contains(known, e.Incarnation)
}
