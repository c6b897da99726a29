package sessionshare

import "sync/atomic"

// Stats is what [Replica.Stats] returns: what happened since New, and what is
// there now.
type Stats struct {
	Hosted  int // copies on this replica now
	Unsaved int // of these, those that the store has not taken yet

	Opened   int64 // sessions opened here
	Resumed  int64 // copies made of sessions opened before
	Closed   int64 // sessions closed here (DELETE, CloseSession, Check)
	Evicted  int64 // copies dropped because they were not used
	Gone     int64 // answers 404
	Doubtful int64 // answers 503 and streams ended because something could not be known
	Held     int64 // requests that waited for the store

	StoreErrors int64 // calls of the store that failed or did not answer in time
	Rechecks    int64 // looks at close marks of hosted sessions
	Touches     int64 // records whose life was extended
}

type counters struct {
	opened, resumed, closed, evicted, gone, doubtful, held atomic.Int64
	rechecks, touches                                      atomic.Int64
}

// Stats returns counters since New, and what is there now.
func (r *Replica) Stats() Stats {
	s := Stats{
		Opened: r.stats.opened.Load(), Resumed: r.stats.resumed.Load(), Closed: r.stats.closed.Load(),
		Evicted: r.stats.evicted.Load(), Gone: r.stats.gone.Load(), Doubtful: r.stats.doubtful.Load(),
		Held: r.stats.held.Load(), Rechecks: r.stats.rechecks.Load(), Touches: r.stats.touches.Load(),
	}
	if r.store != nil {
		s.StoreErrors = r.store.errors.Load()
	}
	r.hosted(func(c *hostedCopy) bool {
		s.Hosted++
		if c.unsaved() {
			s.Unsaved++
		}
		return true
	})
	return s
}
