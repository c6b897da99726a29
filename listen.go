package sessionshare

import (
	"context"
	"time"
)

const (
	// inboxSize is how much another replica may have for a stream at a time.
	inboxSize = 1024

	// mergeWindow is the time in which a repeated notification is merged into one.
	mergeWindow = 500 * time.Millisecond

	// streamTTL is for how long the store knows where a client's stream is. It is
	// told again with every recheck in the background.
	streamTTL = 3 * busyRecheck
)

// tend looks after a client's stream: it sends what other replicas have for it,
// what was merged, and comments while it is silent. It ends with ctx, the
// stream's, and ends the stream when nothing gets through to the client.
func (s *clientStream) tend(ctx context.Context) {
	select {
	case <-s.w.open:
	case <-ctx.Done():
		return // it was never a stream
	}
	if s.claim(ctx) {
		s.c.r.hints.publishSoon("", hintLook, string(s.c.digest))
	}
	defer s.release()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case key := <-s.inbox:
			if !s.receive(ctx, key) {
				s.cancel()
				return
			}
		case <-s.w.kick:
		case <-timer.C:
		}
		next, err := s.w.tend(s.c.r.opts.StreamHeartbeat)
		if err != nil {
			s.cancel()
			return
		}
		timer.Reset(next)
	}
}

// tendFrom starts tend, and returns what ends it.
func (s *clientStream) tendFrom(ctx context.Context) (end func()) {
	tended := make(chan struct{})
	s.c.r.owned.run(func() {
		defer close(tended)
		s.tend(ctx)
	})
	return func() {
		s.cancel()
		<-tended
	}
}

// claim tells the store that the client's stream is here, and reports whether it
// took that.
func (s *clientStream) claim(ctx context.Context) bool {
	r := s.c.r
	if r.store == nil {
		return false
	}
	s.c.mu.Lock()
	s.claimed = r.now()
	first := s.told.IsZero()
	s.c.mu.Unlock()
	if !s.putClaim(ctx, first) {
		return false
	}
	s.c.mu.Lock()
	s.told = r.now()
	left := s.left
	s.c.mu.Unlock()
	if left {
		s.unclaim() // it has gone meanwhile
	}
	return !left
}

// putClaim stores the claim. The first one wins over others, for the newest stream
// is the client's; a renewal does not hit a newer one, where the store can tell.
func (s *clientStream) putClaim(ctx context.Context, first bool) bool {
	r, key, value := s.c.r, s.c.r.keys.stream(s.c.digest), s.claimValue()
	if first || r.store.swapper == nil {
		return r.store.put(ctx, key, value, streamTTL) == nil
	}
	swapped, err := r.store.swap(ctx, key, value, value, streamTTL)
	if err == nil && !swapped {
		swapped, err = r.store.swap(ctx, key, nil, value, streamTTL) // the store lost it
	}
	return swapped && err == nil
}

// claimValue says who holds the stream: replica tag, then what tells streams
// apart.
func (s *clientStream) claimValue() []byte { return []byte(s.c.r.hints.self + "." + s.nonce) }

// holderOf returns the tag of the replica that a claim is of, "" for none.
func holderOf(claim []byte) string {
	if len(claim) > replicaTag && claim[replicaTag] == '.' {
		return string(claim[:replicaTag])
	}
	return ""
}

// noClaim is what a claim is replaced by on a store that can swap, for a moment:
// deleting might hit a newer one.
const noClaim, noClaimTTL = "-", time.Second

// release takes the claim back when the stream has ended, unless the client has a
// newer one.
func (s *clientStream) release() {
	r := s.c.r
	s.c.mu.Lock()
	taken := s.taken || s.c.streams[""] != s
	s.left = true
	s.c.mu.Unlock()
	if r.store != nil && !taken {
		s.unclaim()
	}
}

// unclaim is release once it is decided.
func (s *clientStream) unclaim() {
	r, ctx := s.c.r, context.Background()
	key := r.keys.stream(s.c.digest)
	var err error
	if r.store.swapper != nil {
		_, err = r.store.swap(ctx, key, s.claimValue(), []byte(noClaim), noClaimTTL)
	} else if values, e := r.store.get(ctx, key); e != nil || string(values[0]) != string(s.claimValue()) {
		return
	} else {
		err = r.store.delete(ctx, key)
	}
	if err == nil {
		r.hints.publishSoon("", hintLook, string(s.c.digest))
	}
}

// sawStream acts on what a recheck, which began at began, read about where the
// client's stream is.
func (c *hostedCopy) sawStream(ctx context.Context, began time.Time, value []byte) {
	holder := holderOf(value)
	now := c.r.now()
	c.mu.Lock()
	s := c.streams[""]
	mine := s != nil && !s.own && !s.left
	claim := mine && (since(now, s.claimed) >= busyRecheck ||
		s.told.IsZero() && since(now, s.claimed) > c.r.opts.StoreTimeout ||
		holder == "" && began.After(s.told))
	if mine && holder != "" && holder != c.r.hints.self && !s.told.IsZero() && began.After(s.told) && !s.taken {
		// The client has a newer one there.
		s.taken = true
		rare := c.rarely()
		rare.takes, rare.takenAt = rare.takes+1, now
		s.cancel()
		claim = false
	}
	c.mu.Unlock()
	switch {
	case claim:
		s.claim(ctx)
	case mine:
	default:
		c.follow(holder)
	}
}

// A merging is a notification that was sent just now; the same within the window
// is sent once more, at its end.
type merging struct {
	until time.Time
	again bool
}

// merge reports whether data need not be sent now. w.mu is held.
func (w *streamWriter) merge(data []byte) bool {
	if w.merged == nil || !mergeable(data) {
		return false
	}
	now := w.c.r.now()
	m := w.merged[string(data)]
	if m == nil {
		w.merged[string(data)] = &merging{until: now.Add(mergeWindow)}
		w.wake()
		return false
	}
	if !m.again {
		m.again = true
		w.wake()
	}
	return true
}

func (w *streamWriter) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// tend sends what is due and returns when to come again.
func (w *streamWriter) tend(heartbeat time.Duration) (next time.Duration, err error) {
	if !w.mu.TryLock() {
		return sweepTick, nil // something is being written, for long perhaps
	}
	defer w.mu.Unlock()
	now := w.c.r.now()
	next = time.Hour
	flush := false
	for data, m := range w.merged {
		if left := m.until.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if !m.again {
			delete(w.merged, data)
			continue
		}
		m.again, m.until = false, now.Add(mergeWindow)
		next = min(next, mergeWindow)
		flush = true
		if err := w.send(eventOf([]byte(data))); err != nil {
			return 0, err
		}
	}
	if heartbeat > 0 {
		if since(now, w.wrote) >= heartbeat {
			flush = true
			if err := w.send([]byte(": \n\n")); err != nil {
				return 0, err
			}
		}
		next = min(next, heartbeat-since(now, w.wrote))
	}
	if flush {
		if err := w.flush(); err != nil && !isUnsupported(err) {
			return 0, err
		}
	}
	return max(next, time.Millisecond), nil
}

// forwarded sends data that another replica's copy has for the client.
func (w *streamWriter) forwarded(data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused != 0 || w.merge(data) {
		return nil
	}
	if !w.began {
		streamHeader(w.Header())
		w.begin()
	}
	if err := w.send(eventOf(data)); err != nil {
		return err
	}
	if err := w.flush(); err != nil && !isUnsupported(err) {
		return err
	}
	return nil
}
