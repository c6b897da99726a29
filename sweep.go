package sessionshare

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// busyRecheck is how often a copy that is busy without new requests is
	// rechecked in the background, so that its end is found out within a minute;
	// more often where the session's idle timeout would be over before it is touched.
	busyRecheck = 30 * time.Second

	// sweepTick is how often the sweeper looks at what this replica holds; more
	// often where idle timeouts are a few seconds.
	sweepTick = time.Second

	// idleLooks is how many times in an idle timeout the sweeper looks at least.
	idleLooks = 4

	// sweepReaders is how many copies the sweeper reads for at once.
	sweepReaders = 64

	// saveDelayMax bounds the growing pause between attempts to save a record or
	// a close mark.
	saveDelayMax = time.Minute

	// storeSweep is the mean pause between calls of Sweeper.Sweep.
	storeSweep = 10 * time.Minute
)

// The sweeper is the one goroutine that does what timers would: it evicts idle
// copies, keeps busy sessions alive, saves what the store has not taken, and
// stores close marks that are owed. It runs while there is something to look
// after, and ends with Shutdown.
type sweeper struct {
	mu      sync.Mutex
	running bool // guarded by mu

	readers chan struct{} // one for each goroutine that looks at the store
	cancels atomic.Bool   // a goroutine looks for cancellations
}

// needSweeper makes sure that the sweeper runs. Called after something was
// published that it must look after.
func (r *Replica) needSweeper() {
	r.sweeper.mu.Lock()
	defer r.sweeper.mu.Unlock()
	if r.sweeper.running || r.owned.signalled() {
		return
	}
	r.sweeper.running = true
	r.owned.run(r.sweep)
}

func (r *Replica) sweep() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick := time.NewTicker(min(sweepTick, r.opts.IdleTimeout/idleLooks))
	defer tick.Stop()
	nextStore := r.now().Add(jitter(storeSweep))
	var hurried time.Time // a store that comes and goes does not get everything each time
	for {
		select {
		case <-r.owned.stop:
			return
		case <-tick.C:
		}
		if r.store != nil && r.store.back.Load() && since(r.now(), hurried) >= saveDelayMax {
			r.store.back.Store(false)
			hurried = r.now()
			r.hurry()
		}
		r.sweepCopies()
		r.sweepCalls()
		r.outbox.sweep()
		r.closures.retry()
		if r.store != nil && r.store.sweeper != nil && !r.now().Before(nextStore) {
			nextStore = r.now().Add(jitter(storeSweep))
			r.owned.run(func() { r.sweepStore(ctx) })
		}
		if r.sweepDone() {
			return
		}
	}
}

// hurry makes all that is owed to the store due now: it answers again, and pauses
// have grown while it did not.
func (r *Replica) hurry() {
	r.hosted(func(c *hostedCopy) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.rare != nil {
			c.rare.saveAt, c.rare.saveDelay = time.Time{}, 0
		}
		return true
	})
	r.closures.hurry()
}

// sweepDone ends the sweeper if nothing is left to look after.
func (r *Replica) sweepDone() bool {
	r.sweeper.mu.Lock()
	defer r.sweeper.mu.Unlock()
	idle := !r.closures.owing() && r.outbox.empty()
	r.hosted(func(*hostedCopy) bool { idle = false; return false })
	r.sweeper.running = !idle
	return idle
}

// jitter returns d give or take a fifth, so that replicas do not move in step.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// sweepCopies does for each copy what is due. What needs the store is done by a
// few goroutines at once, which the sweeper does not wait for; what finds none
// free is still due at the next tick.
func (r *Replica) sweepCopies() {
	now := r.now()
	r.hosted(func(c *hostedCopy) bool {
		chore := c.chore(now, len(r.sweeper.readers) < cap(r.sweeper.readers))
		switch chore {
		case choreExpire:
			c.end(ErrClosed)
		case choreEvict:
			r.stats.evicted.Add(1)
			c.end(ErrEvicted)
		case choreRecheck, choreSave:
			r.sweeper.readers <- struct{}{}
			r.owned.run(func() {
				defer func() { <-r.sweeper.readers }()
				if chore == choreSave {
					c.save(context.Background())
				} else {
					c.recheckIdle()
				}
			})
		}
		if c.streamsInDoubt(now) {
			c.endStreams()
		}
		return true
	})
}

// sweepCalls looks for cancellations of calls that have run for a while.
func (r *Replica) sweepCalls() {
	if r.store == nil {
		return
	}
	now := r.now()
	var calls []longCall
	r.hosted(func(c *hostedCopy) bool {
		calls = append(calls, c.longCalls(now, cancelTick)...)
		return true
	})
	if len(calls) > 0 && r.sweeper.cancels.CompareAndSwap(false, true) {
		r.owned.run(func() {
			defer r.sweeper.cancels.Store(false)
			r.lookForCancels(calls)
		})
	}
}

// settle tries once more what copies owe the store, in Shutdown: nobody else knows
// that these sessions live.
func (r *Replica) settle() {
	if r.store == nil {
		return
	}
	var wg sync.WaitGroup
	r.hosted(func(c *hostedCopy) bool {
		c.mu.Lock()
		unsaved, owes := c.saved != savedYes, !c.owed.IsZero() || c.stateOwed.Load()
		c.mu.Unlock()
		if unsaved || owes {
			wg.Go(func() {
				if unsaved {
					c.save(context.Background())
				} else {
					c.recheckIdle()
				}
			})
		}
		return true
	})
	wg.Wait()
}

type chore int

const (
	choreNone    chore = iota
	choreExpire        // over for lack of use
	choreEvict         // not used here
	choreRecheck       // busy without requests, or owes a touch
	choreSave          // the store owes it its record
)

// chore says what the sweeper must do for c now, and claims it. mayRead says that
// it can read.
func (c *hostedCopy) chore(now time.Time, mayRead bool) chore {
	c.mu.Lock()
	defer c.mu.Unlock()
	busy, unused := c.busy(), since(now, c.used)
	switch {
	case c.ending:
		return choreNone
	case c.saved == savedYes && !busy && c.owed.IsZero() && !c.stateOwed.Load() && unused >= min(c.r.opts.EvictAfter, c.rec.idle()):
		// Also at the idle timeout: the session may be in use elsewhere.
		return choreEvict
	case !busy && unused >= c.rec.idle():
		return choreExpire
	case c.r.store != nil && c.saved != savedYes:
		if !mayRead || c.looking || now.Before(c.rarely().saveAt) {
			return choreNone
		}
		c.claimLook(now)
		return choreSave
	case !mayRead || c.looking || !c.checkable():
		return choreNone
	case busy && since(now, c.looked) >= min(busyRecheck, c.rec.idle()/idleLooks),
		(!c.owed.IsZero() || c.stateOwed.Load()) && since(now, c.looked) >= max(min(c.r.recheckInterval(), DefaultRecheckInterval), sweepTick):
		c.claimLook(now)
		return choreRecheck
	}
	return choreNone
}

// streamsInDoubt reports whether c has streams that it may not serve any more.
func (c *hostedCopy) streamsInDoubt(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) > 0 && c.inDoubt(now)
}

// recheckIdle is the recheck of a copy that no request looks after.
func (c *hostedCopy) recheckIdle() {
	c.mu.Lock()
	kind := lookMarks
	if c.inDoubt(c.r.now()) {
		kind = lookAll
	}
	active := c.busy()
	c.mu.Unlock()
	_ = c.recheck(context.Background(), kind, active)
}

// save tries to store a record that the store has not taken yet. Somebody else
// may have resumed the session by now and closed it, if an earlier attempt was
// applied all the same: so the marks are read first, and a copy in doubt goes on
// only if its record is there.
func (c *hostedCopy) save(ctx context.Context) {
	c.mu.Lock()
	kind, first := lookMarks, c.saved == savedNever
	if c.inDoubt(c.r.now()) {
		kind = lookAll
	}
	c.mu.Unlock()
	began := c.r.now()
	var err error
	if !first {
		err = c.recheck(ctx, kind, false)
		if errors.Is(err, ErrGone) {
			return
		}
		if c.lookedSince(began) {
			err = nil
		} else if err == nil {
			err = errSlow
		}
	}
	if err == nil {
		c.mu.Lock()
		c.saved = max(c.saved, savedMaybe)
		c.mu.Unlock()
		began = c.r.now()
		err = c.putRecord(ctx)
	}
	c.lookEnded()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.saveLater()
		return
	}
	c.saved, c.touched, c.owed = savedYes, began, time.Time{}
	c.r.log.Info("sessionshare: session is shared now", "session", c.Digest())
}

// lookedSince reports whether a look that began at t or later succeeded.
func (c *hostedCopy) lookedSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.verified.Before(t)
}

// saveLater schedules the next attempt to save. c.mu is held.
func (c *hostedCopy) saveLater() {
	first := c.r.recheckInterval()
	if first < 0 {
		first = DefaultRecheckInterval
	}
	rare := c.rarely()
	rare.saveDelay = min(max(2*rare.saveDelay, first), saveDelayMax)
	rare.saveAt = c.r.now().Add(rare.saveDelay)
}

// sweepStore removes expired keys from a store that keeps them.
func (r *Replica) sweepStore(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := guarded(func() error { return r.store.sweeper.Sweep(ctx) })
	if err != nil && ctx.Err() == nil {
		r.log.Warn("sessionshare: sweeping the store failed", "error", err)
	}
}
