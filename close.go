package sessionshare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// minEndpointMark is the least life of the close mark of an endpoint.
const minEndpointMark = 48 * time.Hour

// CloseSession ends a session on all replicas, as a DELETE of its own client
// would: here at once, elsewhere within RecheckInterval. Closing one that does
// not exist is no error. If it returns an error, the store did not take the close
// mark: the session is over on this replica, and the mark is tried again in the
// background and in Shutdown.
func (r *Replica) CloseSession(ctx context.Context, sessionID string) error {
	if !validSessionID(sessionID) {
		return errors.New("sessionshare: CloseSession: not a session ID")
	}
	rec := r.knownRecord(ctx, sessionID)
	return r.closeSession(ctx, sessionID, rec, closedByHost)
}

// knownRecord returns the record of a session if it can be had; the mark of a
// session that cannot be read lives as long as this replica's own do.
func (r *Replica) knownRecord(ctx context.Context, sessionID string) *record {
	if c, ok := r.lookup(sessionID); ok {
		return c.rec
	}
	if r.store == nil {
		return nil
	}
	values, err := r.store.get(ctx, r.keys.session(digestOf(sessionID)))
	if err != nil || values[0] == nil {
		return nil
	}
	rec, _ := decodeRecord(values[0])
	return rec
}

// closeSession stores the close mark of a session, removes its record and drops
// the copy here. From its start on the session is gone on this replica. rec may
// be nil.
func (r *Replica) closeSession(ctx context.Context, sessionID string, rec *record, how closer) error {
	d := digestOf(sessionID)
	ttl := 2 * r.opts.IdleTimeout
	if rec != nil {
		ttl = max(ttl, 2*rec.idle())
	}
	r.stats.closed.Add(1)
	m := &closing{mark: r.keys.closed(d), ttl: ttl, record: r.keys.session(d), session: d.short(), id: sessionID, rec: rec, how: how}
	m.value, m.ended = []byte("1"), &ending{}
	if r.opts.Ended != nil {
		m.value = []byte("1." + newTag(16)) // tells who was first
	}
	r.closures.addSession(sessionID, m)
	if c, ok := r.lookup(sessionID); ok {
		m.copy = c
		c.end(ErrClosed) // a store that hangs holds that up for nobody here
	}
	r.purge(ctx, sessionID)
	return r.closures.store(ctx, m)
}

// A closer says who closes a session.
type closer int

const (
	closedByHost  closer = iota // DELETE, CloseSession
	closedByCheck               // Options.Check, which other replicas ask too
)

// CloseEndpoint ends every session that was opened on one incarnation of an
// endpoint, here at once, elsewhere within RecheckInterval, and refuses to open
// further ones on it here. It is called when the endpoint is deleted. Sessions of
// a later incarnation are spared. If it returns an error, the store did not take
// the close mark: it is tried again in the background and in Shutdown.
func (r *Replica) CloseEndpoint(ctx context.Context, e Endpoint) error {
	if e.Incarnation == "" {
		return errors.New("sessionshare: CloseEndpoint needs an Incarnation, or it would end the sessions of endpoints to come")
	}
	m := &closing{mark: r.keys.endpoint(e), value: []byte("1"), ttl: max(2*r.opts.IdleTimeout, minEndpointMark)}
	r.closures.addEndpoint(e, m)
	r.hosted(func(c *hostedCopy) bool {
		if c.rec.endpoint() == e {
			r.closures.endedWith(c.id, m)
			c.end(ErrClosed)
		}
		return true
	})
	return r.closures.store(ctx, m)
}

// closures is what this replica knows to be closed: the sessions it has closed
// itself, until nobody can still be resuming them, and close marks that the store
// has yet to take.
type closures struct {
	r *Replica

	mu        sync.Mutex // guards all below
	sessions  map[string]*closing
	endpoints map[Endpoint]*closing
}

// A closing is one close mark. closures.mu guards what changes.
type closing struct {
	mark    string
	value   []byte // not the empty value: one driver reads that back as missing
	ttl     time.Duration
	record  string  // key of the record to remove after it; "" for an endpoint
	session string  // for the log; "" for an endpoint
	id      string  // of the session
	rec     *record // may be nil
	how     closer
	copy    *hostedCopy // the one here; may be nil
	ended   *ending     // calls Options.Ended; shared by all attempts of this replica

	stored  bool
	storing bool
	retryAt time.Time
	delay   time.Duration
	forget  time.Time // when this replica need not know any more

	within *closing // of an endpoint: the session ended with it; it has no mark of its own
}

// An ending calls Options.Ended once. Who comes second waits.
type ending struct {
	lock waitLock
	done bool // guarded by lock
}

func (e *ending) once(f func()) {
	e.lock.Lock()
	defer e.lock.Unlock()
	if !e.done {
		e.done = true
		f()
	}
}

func (k *closures) init(r *Replica) {
	k.r = r
	k.sessions = map[string]*closing{}
	k.endpoints = map[Endpoint]*closing{}
}

func (k *closures) addSession(id string, m *closing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.forget = k.r.now().Add(m.ttl)
	if before := k.sessions[id]; before != nil && before.within == nil {
		m.value, m.ended = before.value, before.ended // whose outcome may be open
		m.ttl = max(m.ttl, before.ttl)                // which may have known the record
	}
	k.sessions[id] = m
}

// endedWith notes a session that ended with its endpoint, until the mark of that
// is stored and says so.
func (k *closures) endedWith(id string, endpoint *closing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sessions[id] == nil {
		k.sessions[id] = &closing{stored: true, forget: endpoint.forget, within: endpoint}
	}
}

func (k *closures) addEndpoint(e Endpoint, m *closing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.forget = k.r.now().Add(m.ttl)
	k.endpoints[e] = m
}

// session reports whether this replica has closed the session.
func (k *closures) session(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sessions[id] != nil
}

// endpoint reports whether this replica was told that e is closed.
func (k *closures) endpoint(e Endpoint) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.endpoints[e] != nil
}

// store tries to store m, and leaves it to the sweeper if that fails.
func (k *closures) store(ctx context.Context, m *closing) error {
	k.mu.Lock()
	m.storing = true
	k.mu.Unlock()
	err := k.put(ctx, m)
	k.mu.Lock()
	m.storing = false
	now := k.r.now()
	if err == nil {
		m.stored = true
		if m.record != "" {
			// What began to resume before the mark was there has ended by then, or
			// has read the marks again.
			m.forget = now.Add(max(k.r.recheckInterval(), 0) + k.r.creationBound() + time.Minute)
		}
	} else {
		m.delay = min(max(2*m.delay, time.Second), saveDelayMax)
		m.retryAt = now.Add(m.delay)
	}
	k.mu.Unlock()
	k.r.needSweeper()
	if err != nil {
		k.r.log.Warn("sessionshare: a close mark could not be stored, trying again", "session", m.session, "error", err)
		return fmt.Errorf("sessionshare: close mark not stored yet: %w", err)
	}
	return nil
}

// put stores the mark m, and does what follows from that: the others are told and
// the copy here ends before Options.Ended takes its time, and what belonged to the
// session goes after it.
func (k *closures) put(ctx context.Context, m *closing) error {
	r, first := k.r, true
	switch {
	case r.store == nil:
	case m.session == "" || r.opts.Ended == nil:
		if err := r.store.mark(ctx, m.mark, m.value, m.ttl, m.record); err != nil {
			return err
		}
	default:
		var err error
		if first, err = k.putFirst(ctx, m); err != nil {
			return err
		}
	}
	if m.session == "" {
		r.hints.publishSoon("", hintEndpoint, m.mark)
		return nil
	}
	r.hints.publishSoon("", hintClosed, string(digestOf(m.id)))
	if m.copy != nil {
		m.copy.end(ErrClosed)
	}
	if r.opts.Ended != nil && first && m.how == closedByHost && m.rec != nil {
		m.ended.once(func() { r.callEnded(ctx, m) })
	}
	if r.store != nil && first {
		// Who was not first leaves this to who was, whose Ended may be reading it.
		r.owned.run(func() { r.forgetSession(digestOf(m.id)) })
	}
	return nil
}

// putFirst is the part of put that finds out whether this replica is the one that
// closes the session.
func (k *closures) putFirst(ctx context.Context, m *closing) (first bool, err error) {
	if m.rec == nil && m.how == closedByHost {
		values, err := k.r.store.get(ctx, m.record)
		if err != nil {
			return false, err
		}
		m.rec, _ = decodeRecord(values[0])
	}
	first, err = k.r.store.markFirst(ctx, m.mark, m.value, m.ttl)
	if err == nil {
		_ = k.r.store.delete(ctx, m.record)
	}
	return first, err
}

// forgetSession removes what belonged to a session that is closed.
func (r *Replica) forgetSession(d sessionDigest) {
	for _, key := range []string{r.keys.state(d), r.keys.data(d), r.keys.stream(d)} {
		_ = r.store.delete(context.Background(), key)
	}
}

// owing reports whether the sweeper is needed.
func (k *closures) owing() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.sessions) > 0 || len(k.endpoints) > 0
}

// retry tries the marks that are due, and forgets what has become history.
func (k *closures) retry() {
	for _, m := range k.due(false) {
		k.r.owned.run(func() { _ = k.store(context.Background(), m) })
	}
}

// hurry makes the marks that are owed due now.
func (k *closures) hurry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.sessions {
		m.retryAt, m.delay = time.Time{}, 0
	}
	for _, m := range k.endpoints {
		m.retryAt, m.delay = time.Time{}, 0
	}
}

// flush tries all marks that are owed once more, in Shutdown.
func (k *closures) flush(ctx context.Context) {
	var wg sync.WaitGroup
	for _, m := range k.due(true) {
		wg.Go(func() { _ = k.store(ctx, m) })
	}
	wg.Wait()
}

// due returns and claims the marks to be tried now, or all that are owed.
func (k *closures) due(all bool) []*closing {
	now := k.r.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*closing
	claim := func(m *closing) {
		if !m.stored && !m.storing && (all || !now.Before(m.retryAt)) {
			m.storing = true
			out = append(out, m)
		}
	}
	for id, m := range k.sessions {
		if claim(m); !now.Before(m.forget) || m.within != nil && m.within.stored {
			delete(k.sessions, id)
		}
	}
	for e, m := range k.endpoints {
		if claim(m); !now.Before(m.forget) {
			delete(k.endpoints, e)
		}
	}
	return out
}
