package sessionshare

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A message for the client's stream on another replica is a key in the store, and
// a hint that names it. Hints get lost: who sent the message looks after a while
// whether it was fetched, and names it again; who holds the stream fetches what
// came before a message, if it has not, so that the order is kept.

const (
	// remindAfter is how long a message may lie in the store before it is named
	// again; the next time after twice as long.
	remindAfter = 2 * time.Second

	maxOutbox = 4096 // messages looked after; more are named once
	maxGap    = 16   // messages fetched that nobody has named, before one
)

// An outbox is what copies here have sent to streams on other replicas lately.
type outbox struct {
	r *Replica

	mu      sync.Mutex // guards all below
	sent    []*sentOut // oldest first
	looking bool       // a goroutine does
}

type sentOut struct {
	digest sessionDigest
	key    string // without the store's prefix
	at     time.Time
	pause  time.Duration // after at, until it is looked for; outbox.mu
}

func (o *outbox) add(d sessionDigest, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.sent) < maxOutbox {
		o.sent = append(o.sent, &sentOut{digest: d, key: key, at: o.r.now(), pause: remindAfter})
	}
}

// sweep looks after what has lain for a while. The sweeper calls it.
func (o *outbox) sweep() {
	now := o.r.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = slices.DeleteFunc(o.sent, func(m *sentOut) bool { return since(now, m.at) >= outTTL })
	var due []*sentOut
	for _, m := range o.sent {
		if since(now, m.at) >= m.pause && len(due) < maxBatch {
			due = append(due, m)
		}
	}
	if len(due) == 0 || o.looking {
		return
	}
	o.looking = true
	o.r.owned.run(func() {
		fetched := o.remind(due)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.looking = false
		o.sent = slices.DeleteFunc(o.sent, func(m *sentOut) bool { return fetched[m] })
		for _, m := range due {
			m.pause *= 2
		}
	})
}

// remind names messages again that are still there, to who holds the stream now,
// and returns those that are not.
func (o *outbox) remind(due []*sentOut) (fetched map[*sentOut]bool) {
	ctx := context.Background()
	keys := make([]string, len(due))
	for i, m := range due {
		keys[i] = m.key
	}
	there, err := o.r.fetch(ctx, keys)
	if err != nil {
		return nil
	}
	fetched = map[*sentOut]bool{}
	for _, m := range due {
		if there[m.key] == nil {
			fetched[m] = true
			continue
		}
		o.r.nameAgain(ctx, m.digest, m.key)
	}
	return fetched
}

// nameAgain sends a hint about a message to who holds the client's stream now.
func (r *Replica) nameAgain(ctx context.Context, d sessionDigest, key string) {
	values, err := r.store.get(ctx, r.keys.stream(d))
	if err != nil {
		return
	}
	if holder := holderOf(values[0]); holder != "" {
		_ = r.hints.publish(ctx, holder, hintOut, string(d)+" "+key)
	}
}

// fetch returns the values that are there, by key without the store's prefix.
func (r *Replica) fetch(ctx context.Context, keys []string) (map[string][]byte, error) {
	found := map[string][]byte{}
	for some := range slices.Chunk(keys, maxBatch) {
		full := make([]string, len(some))
		for i, key := range some {
			full[i] = r.keys.prefix + key
		}
		values, err := r.store.get(ctx, full...)
		if err != nil {
			return nil, err
		}
		for i, key := range some {
			if values[i] != nil {
				found[key] = values[i]
			}
		}
	}
	return found, nil
}

// An inlet knows which messages of one copy were sent to the client on one stream:
// those from first to last.
type inlet struct{ first, last int64 }

// inlets are those of one stream, by key without number.
type inlets map[string]inlet

// maxInlets bounds them: a session has few copies at a time.
const maxInlets = 64

// take returns the keys to fetch for a message that a hint names: its own, after
// those that should have come before it; none if it has been sent.
func (in inlets) take(key string) []string {
	dot := strings.LastIndexByte(key, '.')
	base, number := key[:dot+1], key[dot+1:]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 {
		return nil
	}
	seen, known := in[base]
	switch {
	case !known:
		if len(in) >= maxInlets {
			clear(in)
		}
		in[base] = inlet{n, n}
	case n < seen.first: // it went to where the stream was before
		in[base] = inlet{n, seen.last}
	case n <= seen.last:
		return nil
	default:
		in[base] = inlet{seen.first, n}
		var keys []string
		for i := max(seen.last+1, n-maxGap); i <= n; i++ {
			keys = append(keys, base+strconv.FormatInt(i, 10))
		}
		return keys
	}
	return []string{key}
}
