package sessionshare

import (
	"context"
	"sync"
	"time"
)

// Bounds on what waits for the store at a time; beyond them requests are answered
// at once.
const (
	maxHeld      = 1000
	maxHeldBytes = 64 << 20

	holdPauseFirst = 100 * time.Millisecond
	holdPauseMax   = time.Second
)

// holds is the account of requests that wait for the store to come back: those
// that no client sends again.
type holds struct {
	mu       sync.Mutex // guards all below
	requests int
	bytes    int
	released chan struct{} // closed by release; nil before the first hold
	over     bool
}

// A hold is one request's waiting. The zero hold has not begun.
type hold struct {
	holds    *holds
	bytes    int
	pause    time.Duration
	deadline time.Time
	released chan struct{}
}

// wait waits a while before the request is tried again. It returns false if the
// request must be answered now: it has waited for long enough, too much waits
// already, its client has gone, or the replica shuts down.
func (h *hold) wait(ctx context.Context, r *Replica, bytes int) bool {
	now := r.now()
	if h.holds == nil {
		if !r.holds.take(h, bytes) {
			return false
		}
		h.deadline = now.Add(r.opts.HoldTimeout)
		h.pause = holdPauseFirst
		r.stats.held.Add(1)
	}
	left := h.deadline.Sub(now)
	if left <= 0 {
		return false
	}
	timer := time.NewTimer(min(jitter(h.pause), left))
	defer timer.Stop()
	h.pause = min(2*h.pause, holdPauseMax)
	select {
	case <-timer.C:
		return true
	case <-h.released:
		return false
	case <-ctx.Done():
		return false
	}
}

// end gives the place back.
func (h *hold) end() {
	if h.holds == nil {
		return
	}
	h.holds.mu.Lock()
	defer h.holds.mu.Unlock()
	h.holds.requests--
	h.holds.bytes -= h.bytes
}

func (k *holds) take(h *hold, bytes int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.requests >= maxHeld || k.bytes+bytes > maxHeldBytes {
		return false
	}
	if k.released == nil {
		k.released = make(chan struct{})
	}
	k.requests++
	k.bytes += bytes
	h.holds, h.bytes, h.released = k, bytes, k.released
	return true
}

// release sends all that wait on, and lets nobody wait from now on.
func (k *holds) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over && k.released != nil {
		close(k.released)
	}
	k.over = true
}
