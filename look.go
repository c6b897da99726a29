package sessionshare

import (
	"context"
	"time"
)

// A lookKind says what must be read before a request is served.
type lookKind int

const (
	lookNone   lookKind = iota
	lookMarks           // the close marks; if they cannot be read, the copy goes on
	lookWait            // nothing, but the look that is under way must have ended
	lookAll             // record and marks: the copy is in doubt and goes on only if they say so
	lookHinted          // the close marks, and everything that a hint may speak of
)

// standing is what a copy knows of its session in the store. hostedCopy.mu
// guards it.
//
// All times are those before the call began whose success they stand for: what
// was read or written is as old as the question.
type standing struct {
	verified time.Time     // the last successful look
	looked   time.Time     // the last attempt at one
	looking  bool          // a request or the sweeper looks now
	before   time.Time     // the last attempt before the one under way
	lookOver chan struct{} // closed when the look under way has ended; nil if nobody waits

	hinted, hintedAgain bool // a look on a hint is under way, and one more is due

	saved savedState

	touched time.Time // the last time the record is known to have been extended
	owed    time.Time // since when a touch is owed that failed; zero if none
}

// A savedState says what is known of the record in the store.
type savedState int

const (
	savedNever savedState = iota // no Put was ever sent: nobody else can know the session
	savedMaybe                   // a Put was sent and its outcome is open
	savedYes
)

// unsaved reports whether the store still owes the copy its record.
func (c *hostedCopy) unsaved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.r.store != nil && c.saved != savedYes
}

// checkable reports whether there is anything to look at. c.mu is held.
func (c *hostedCopy) checkable() bool {
	return c.saved != savedNever || c.r.opts.Check != nil
}

// inDoubt reports whether the copy has not been verified for too long (rules 3
// and 4): no longer than the session's own idle timeout, which a cluster whose
// options are being changed may not agree on, or its mark can expire unread. c.mu is
// held.
func (c *hostedCopy) inDoubt(now time.Time) bool {
	return c.checkable() && since(now, c.verified) >= min(c.r.opts.UnverifiedLimit, c.rec.idle())
}

// lookDue decides which look a request must take, and claims it: at most one
// request per interval looks, and the others do not wait for it, unless the copy
// has rested, and what is known of it is too old to go by (rule 1). c.mu is held.
func (c *hostedCopy) lookDue(now time.Time) lookKind {
	if !c.checkable() {
		return lookNone
	}
	interval := c.r.recheckInterval()
	switch {
	case c.inDoubt(now):
		return lookAll
	case interval < 0:
		return lookMarks
	case c.looking && since(now, c.before) >= interval+c.r.opts.StoreTimeout:
		return lookWait
	case c.looking || since(now, c.looked) < interval:
		return lookNone
	}
	c.claimLook(now)
	return lookMarks
}

// claimLook says that a look begins. c.mu is held.
func (c *hostedCopy) claimLook(now time.Time) {
	c.looking, c.looked, c.before = true, now, c.looked
}

// lookEnded sends on who waits for a look whose outcome is known now.
func (c *hostedCopy) lookEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looking = false
	if c.lookOver != nil {
		close(c.lookOver)
		c.lookOver = nil
	}
}

// awaitLook waits until the look under way has ended, and reports whether the
// copy still serves.
func (c *hostedCopy) awaitLook(ctx context.Context) (ok bool) {
	c.mu.Lock()
	if c.looking {
		if c.lookOver == nil {
			c.lookOver = make(chan struct{})
		}
		over := c.lookOver
		c.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	return !c.ending
}
