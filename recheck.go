package sessionshare

import (
	"context"
	"errors"
	"time"
)

// A lookKind says what must be read before a request is served.
type lookKind int

const (
	lookNone  lookKind = iota
	lookMarks          // the close marks; if they cannot be read, the copy goes on
	lookAll            // record and marks: the copy is in doubt and goes on only if they say so
)

// standing is what a copy knows of its session in the store. hostedCopy.mu
// guards it.
//
// All times are those before the call began whose success they stand for: what
// was read or written is as old as the question.
type standing struct {
	verified time.Time // the last successful look
	looked   time.Time // the last attempt at one
	looking  bool      // a request or the sweeper looks now

	saved     savedState
	saveAt    time.Time // when saving is tried again
	saveDelay time.Duration

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
// and 4). c.mu is held.
func (c *hostedCopy) inDoubt(now time.Time) bool {
	return c.checkable() && since(now, c.verified) >= c.r.opts.UnverifiedLimit
}

// lookDue decides which look a request must take, and claims it: at most one
// request per interval looks, and the others do not wait for it. c.mu is held.
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
	case c.looking || since(now, c.looked) < interval:
		return lookNone
	}
	c.looking, c.looked = true, now
	return lookMarks
}

// recheck takes the look that enter asked for, and touches the record if that is
// due: read first, touch after, and never touch what could not be read. It
// returns nil if the copy may serve, ErrGone if the session is closed (the copy
// then ends), or doubt.
func (c *hostedCopy) recheck(ctx context.Context, kind lookKind, active bool) error {
	c.r.stats.rechecks.Add(1)
	began := c.r.now()
	err := c.look(ctx, kind)
	c.mu.Lock()
	c.looking = false
	if began.After(c.looked) {
		c.looked = began
	}
	if err == nil && began.After(c.verified) {
		c.verified = began
	}
	// A look that succeeded meanwhile on another goroutine counts.
	doubt := c.inDoubt(c.r.now())
	touch := err == nil && c.touchDue(began)
	c.mu.Unlock()
	switch {
	case errors.Is(err, ErrGone):
		c.end(ErrClosed)
		return ErrGone
	case err != nil && doubt:
		return unsure("close marks cannot be read", err)
	case touch:
		return c.touch(ctx, active)
	}
	return nil
}

// look reads what kind asks for and asks Check. ErrGone means closed; any other
// error that it cannot be known.
func (c *hostedCopy) look(ctx context.Context, kind lookKind) error {
	c.mu.Lock()
	saved := c.saved
	c.mu.Unlock()
	if saved != savedNever {
		closed, found, err := c.r.marks(ctx, c.digest, c.rec.endpoint(), kind == lookAll)
		switch {
		case err != nil:
			return err
		case closed, kind == lookAll && !found:
			return ErrGone
		}
	}
	return c.r.check(ctx, c.id, c.rec)
}

// marks reads the close marks of a session, and on request whether its record is
// there. The record is read first: a mark outlives the record it shadows, so a
// session whose record was there and whose mark then was not is open.
func (r *Replica) marks(ctx context.Context, d sessionDigest, e Endpoint, withRecord bool) (closed, found bool, err error) {
	keys := make([]string, 0, 3)
	if withRecord {
		keys = append(keys, r.keys.session(d))
	}
	first := len(keys)
	keys = append(keys, r.keys.closed(d))
	if e.Incarnation != "" {
		keys = append(keys, r.keys.endpoint(e))
	}
	values, err := r.store.get(ctx, keys...)
	if err != nil {
		return false, false, err
	}
	for _, v := range values[first:] {
		closed = closed || v != nil
	}
	return closed, withRecord && values[0] != nil, nil
}

// check asks Options.Check. ErrGone has then ended the session everywhere.
func (r *Replica) check(ctx context.Context, id string, rec *record) error {
	if r.opts.Check == nil {
		return nil
	}
	_, err := within(ctx, r.opts.StoreTimeout, r.owned.run, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.opts.Check(ctx, rec.binding())
	})
	if errors.Is(err, ErrGone) {
		r.closeSession(ctx, id, rec)
	}
	return err
}

// touchDue reports whether the record's life must be extended. A record that is
// yet to be saved has no life: the sweeper sees to that. c.mu is held.
func (c *hostedCopy) touchDue(now time.Time) bool {
	return c.saved == savedYes && (!c.owed.IsZero() || since(now, c.touched) >= c.r.opts.TouchInterval)
}

// touch extends the life of the record, after a look that found no mark. active
// says that the session is in use, not merely owed an earlier touch.
func (c *hostedCopy) touch(ctx context.Context, active bool) error {
	began := c.r.now()
	key := c.r.keys.session(c.digest)
	var found bool
	var err error
	if c.r.store.toucher != nil {
		found, err = c.r.store.touch(ctx, key, c.rec.idle())
	} else {
		found, err = c.touchByPut(ctx, key)
	}
	if err == nil && !found {
		return c.restore(ctx, began, active)
	}
	c.touchedAt(began, active, err)
	return nil
}

// touchByPut is touch on a store that has only the three methods. The marks have
// just been read; they are read again after the Put, which may have brought back
// what a close had removed between.
func (c *hostedCopy) touchByPut(ctx context.Context, key string) (found bool, err error) {
	values, err := c.r.store.get(ctx, key)
	if err != nil || values[0] == nil {
		return false, err
	}
	return true, c.putRecord(ctx)
}

// putRecord stores the record once more, between two looks at the marks: the
// caller has taken the first.
func (c *hostedCopy) putRecord(ctx context.Context) error {
	value, err := c.rec.encode()
	if err != nil {
		return err
	}
	key := c.r.keys.session(c.digest)
	if err := c.r.store.put(ctx, key, value, c.rec.idle()); err != nil {
		return err
	}
	closed, _, err := c.r.marks(ctx, c.digest, c.rec.endpoint(), false)
	if err == nil && closed {
		_ = c.r.store.delete(ctx, key)
	}
	return err
}

// restore decides about a record that Touch reported missing (rule 2). The store
// lost it if this copy knows that it must still be alive and no mark says
// otherwise; else the session has expired, and nobody may bring it back.
func (c *hostedCopy) restore(ctx context.Context, began time.Time, active bool) error {
	idle := c.rec.idle()
	c.mu.Lock()
	alive := since(began, c.touched) < idle || !c.owed.IsZero() && since(began, c.owed) < idle
	c.mu.Unlock()
	if !alive {
		c.end(ErrClosed)
		return ErrGone
	}
	closed, _, err := c.r.marks(ctx, c.digest, c.rec.endpoint(), false)
	if err == nil && closed {
		c.end(ErrClosed)
		return ErrGone
	}
	if err == nil {
		c.r.log.Warn("sessionshare: the store lost a record, writing it again", "session", c.Digest())
		err = c.putRecord(ctx)
	}
	c.touchedAt(began, active, err)
	return nil
}

// touchedAt notes the outcome of a touch. One that failed is owed: it is due
// again at once, and the copy is kept, for nobody else knows that the session is
// alive.
func (c *hostedCopy) touchedAt(began time.Time, active bool, err error) {
	if err == nil {
		c.r.stats.touches.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.touched, c.owed = began, time.Time{}
	case active || c.owed.IsZero():
		c.owed = began
	}
}
