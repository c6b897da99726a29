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
	return r.closeSession(ctx, sessionID, rec)
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
func (r *Replica) closeSession(ctx context.Context, sessionID string, rec *record) error {
	d := digestOf(sessionID)
	ttl := 2 * r.opts.IdleTimeout
	if rec != nil {
		ttl = max(ttl, 2*rec.idle())
	}
	r.stats.closed.Add(1)
	m := &closing{mark: r.keys.closed(d), ttl: ttl, record: r.keys.session(d), session: d.short()}
	r.closures.addSession(sessionID, m)
	if c, ok := r.lookup(sessionID); ok {
		defer c.end(ErrClosed)
	}
	return r.closures.store(ctx, m)
}

// CloseEndpoint ends every session that was opened on one incarnation of an
// endpoint, here at once, elsewhere within RecheckInterval, and refuses to open
// further ones on it here. It is called when the endpoint is deleted. Sessions of
// a later incarnation are spared. If it returns an error, the store did not take
// the close mark: it is tried again in the background and in Shutdown.
func (r *Replica) CloseEndpoint(ctx context.Context, e Endpoint) error {
	if e.Incarnation == "" {
		return errors.New("sessionshare: CloseEndpoint needs an Incarnation, or it would end the sessions of endpoints to come")
	}
	m := &closing{mark: r.keys.endpoint(e), ttl: max(2*r.opts.IdleTimeout, minEndpointMark)}
	r.closures.addEndpoint(e, m)
	defer r.hosted(func(c *hostedCopy) bool {
		if c.rec.endpoint() == e {
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
	ttl     time.Duration
	record  string // key of the record to remove after it; "" for an endpoint
	session string // for the log

	stored  bool
	storing bool
	retryAt time.Time
	delay   time.Duration
	forget  time.Time // when this replica need not know any more
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
	if k.r.store != nil {
		err = k.r.store.mark(ctx, m.mark, m.ttl, m.record)
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
		if claim(m); !now.Before(m.forget) {
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
