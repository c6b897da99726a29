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
	m := &closing{mark: r.keys.closed(d), ttl: ttl, record: r.keys.session(d), session: d.short(), id: sessionID, rec: rec}
	m.value = []byte("1")
	if r.opts.Ended != nil && rec != nil && how == closedByHost {
		m.value = []byte("1." + newTag(16))
		m.ended = true
	}
	r.closures.addSession(sessionID, m)
	if c, ok := r.lookup(sessionID); ok {
		defer c.end(ErrClosed)
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
	err := r.closures.store(ctx, m)
	r.hosted(func(c *hostedCopy) bool {
		if c.rec.endpoint() == e {
			if err != nil {
				r.closures.endedWith(c.id, m)
			}
			c.end(ErrClosed)
		}
		return true
	})
	return err
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
	ended   bool    // Options.Ended is to be called

	stored  bool
	storing bool
	retryAt time.Time
	delay   time.Duration
	forget  time.Time // when this replica need not know any more

	within *closing // of an endpoint: the session ended with it; it has no mark of its own
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
	var err error
	if !m.ended {
		if k.r.store != nil {
			err = k.r.store.mark(ctx, m.mark, m.value, m.ttl, m.record)
		}
	} else {
		first := true
		if k.r.store != nil {
			first, err = k.r.store.markFirst(ctx, m.mark, m.value, m.ttl)
		}
		if err == nil && first {
			k.r.callEnded(ctx, m)
		}
		if err == nil && k.r.store != nil {
			_ = k.r.store.delete(ctx, m.record)
		}
	}
	if err == nil {
		k.r.closedNow(m)
	}
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

// closedNow tells the others of a mark that was stored, and removes what belonged
// to a session.
func (r *Replica) closedNow(m *closing) {
	if m.session == "" {
		r.hints.publishSoon("", hintEndpoint, m.mark)
		return
	}
	d := digestOf(m.id)
	r.hints.publishSoon("", hintClosed, string(d))
	if r.store != nil {
		r.owned.run(func() {
			for _, key := range []string{r.keys.state(d), r.keys.data(d), r.keys.stream(d)} {
				_ = r.store.delete(context.Background(), key)
			}
		})
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
