package sessionshare

import (
	"context"
	"errors"
	"time"
)

// recheck takes the look that enter asked for, and touches the record if that is
// due: read first, touch after, and never touch what could not be read. It
// returns nil if the copy may serve, ErrGone if the session is closed (the copy
// then ends), or doubt. active says that the session is in use.
func (c *hostedCopy) recheck(ctx context.Context, kind lookKind, active bool) error {
	c.r.stats.rechecks.Add(1)
	began := c.r.now()
	seen, err := c.look(ctx, kind)
	if err == nil && c.outdated(began) {
		kind, began = lookAll, c.r.now()
		seen, err = c.look(ctx, kind)
	}
	c.mu.Lock()
	if looked := began; looked.After(c.looked) || err != nil {
		if err != nil {
			looked = c.r.now() // a store that hangs is not waited for by one request after the other
		}
		c.looked = looked
	}
	if err == nil && began.After(c.verified) {
		c.verified = began
	}
	// A look that succeeded meanwhile on another goroutine counts.
	doubt := c.inDoubt(c.r.now())
	due := c.touchDue(began, active)
	c.mu.Unlock()
	gone := errors.Is(err, ErrGone)
	if gone {
		c.end(ErrClosed) // before those who wait go on
	}
	c.lookEnded()
	if err != nil && !gone && due {
		c.touchedAt(began, active, err) // owed: what could not be read is not touched
	}
	switch {
	case gone:
		return ErrGone
	case err != nil && doubt:
		return unsure("close marks cannot be read", err)
	case err != nil:
		return nil
	}
	if seen.hasState {
		c.syncState(ctx, began, seen.state)
	}
	if seen.hasStream {
		c.sawStream(ctx, began, seen.stream)
	}
	if due {
		return c.touch(ctx, active)
	}
	return nil
}

// outdated reports whether a look that began then took longer than one can: the
// process was suspended meanwhile, and what was read says nothing about today.
func (c *hostedCopy) outdated(began time.Time) bool {
	return since(c.r.now(), began) > max(c.r.recheckInterval(), 0)+2*c.r.opts.StoreTimeout
}

// What a look has read besides the marks.
type seen struct {
	hasState, hasStream bool
	state, stream       []byte // nil: missing
}

// look reads what kind asks for and asks Check. ErrGone means closed; any other
// error that it cannot be known. The record is read first: a mark outlives the
// record it shadows, so a session whose record was there and whose mark then was
// not is open. The state of the session is read each time: what a client has set
// holds everywhere within RecheckInterval. On a store where that takes calls of its
// own they come after the marks, and spoil nothing if they fail.
func (c *hostedCopy) look(ctx context.Context, kind lookKind) (s seen, err error) {
	c.mu.Lock()
	saved := c.saved
	s.hasState = c.r.store != nil
	s.hasStream = c.r.store != nil && c.r.store.batch != nil || kind == lookHinted || c.listening()
	c.mu.Unlock()
	if saved == savedNever {
		return seen{}, c.r.check(ctx, c.id, c.rec)
	}
	keys, first := c.r.markKeys(c.digest, c.rec.endpoint(), kind == lookAll)
	last := len(keys)
	var more []string
	if s.hasState {
		more = append(more, c.r.keys.state(c.digest))
	}
	if s.hasStream {
		more = append(more, c.r.keys.stream(c.digest))
	}
	if c.r.store.batch != nil {
		keys = append(keys, more...)
	}
	values, err := c.r.store.get(ctx, keys...)
	switch {
	case err != nil:
		return seen{}, err
	case anyFound(values[first:last]), kind == lookAll && values[0] == nil:
		return seen{}, ErrGone
	}
	values = values[last:]
	if c.r.store.batch == nil && len(more) > 0 {
		if values, err = c.r.store.get(ctx, more...); err != nil {
			return seen{}, c.r.check(ctx, c.id, c.rec)
		}
	}
	if s.hasState {
		s.state = values[0]
	}
	if s.hasStream {
		s.stream = values[len(values)-1]
	}
	return s, c.r.check(ctx, c.id, c.rec)
}

// markKeys returns the keys of the close marks of a session, from first on, after
// that of its record if asked for.
func (r *Replica) markKeys(d sessionDigest, e Endpoint, withRecord bool) (keys []string, first int) {
	keys = make([]string, 0, 5)
	if withRecord {
		keys = append(keys, r.keys.session(d))
	}
	first = len(keys)
	keys = append(keys, r.keys.closed(d))
	if e.Incarnation != "" {
		keys = append(keys, r.keys.endpoint(e))
	}
	return keys, first
}

func anyFound(values [][]byte) bool {
	for _, v := range values {
		if v != nil {
			return true
		}
	}
	return false
}

// isClosed reads the close marks of a session alone.
func (c *hostedCopy) isClosed(ctx context.Context) (bool, error) {
	keys, _ := c.r.markKeys(c.digest, c.rec.endpoint(), false)
	values, err := c.r.store.get(ctx, keys...)
	return anyFound(values), err
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
		_ = r.closeSession(ctx, id, rec, closedByCheck)
	}
	return err
}

// touchDue reports whether the record's life must be extended. A record that is
// yet to be saved has no life: the sweeper sees to that. A look on a hint is no
// use of the session, but where hints come all the time there is no other. c.mu
// is held.
func (c *hostedCopy) touchDue(now time.Time, active bool) bool {
	every := c.touchInterval()
	return c.saved == savedYes && (!c.owed.IsZero() ||
		since(now, c.touched) >= every && (active || c.busy() || since(now, c.used) < every))
}

// touchInterval is Options.TouchInterval, or the same part of the session's own idle
// timeout if that is shorter: after a deploy that made IdleTimeout longer, sessions
// of before would expire between two touches.
func (c *hostedCopy) touchInterval() time.Duration {
	every, all, idle := c.r.opts.TouchInterval, c.r.opts.IdleTimeout, c.rec.idle()
	if idle >= all {
		return every
	}
	return time.Duration(float64(every) * (float64(idle) / float64(all)))
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
	if err == nil {
		c.touchMore(ctx)
	}
	c.touchedAt(began, active, err)
	return nil
}

// touchMore extends the life of what lives with the record, if there is any. What
// is lost of the state is written again with the next look.
func (c *hostedCopy) touchMore(ctx context.Context) {
	if !c.stateKnown.Load() || !c.stateMu.TryLock() {
		return
	}
	hasState := len(c.state) > 0
	_, hasData := c.state[elementData]
	c.stateMu.Unlock()
	for key, has := range map[string]bool{c.r.keys.state(c.digest): hasState, c.r.keys.data(c.digest): hasData} {
		switch {
		case !has:
		case c.r.store.toucher != nil:
			_, _ = c.r.store.touch(ctx, key, c.rec.idle())
		default:
			c.touchValue(ctx, key)
		}
	}
}

// touchValue is touchMore on a store that is no Toucher.
func (c *hostedCopy) touchValue(ctx context.Context, key string) {
	values, err := c.r.store.get(ctx, key)
	switch {
	case err != nil || values[0] == nil:
	case c.r.store.swapper != nil:
		_, _ = c.r.store.swap(ctx, key, values[0], values[0], c.rec.idle())
	default:
		_ = c.r.store.put(ctx, key, values[0], c.rec.idle())
	}
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
	closed, err := c.isClosed(ctx)
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
	closed, err := c.isClosed(ctx)
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
