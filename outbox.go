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
// a hint that names it. Hints get lost. So each hint also names what the copy sent
// before, as long as nobody is known to have fetched that: who holds the stream
// fetches what it has not sent yet, in order. And who sent a message looks after a
// while whether it is still there, and names it again.

const (
	// remindAfter is how long a message may lie in the store before it is named
	// again; the next time after twice as long.
	remindAfter = 2 * time.Second

	maxOutbox   = 4096    // messages looked after; more are named once
	maxNamed    = 16      // earlier messages in a hint
	remindBytes = 1 << 20 // of messages that are read to see whether they are there
)

// An outbox is what copies here have sent lately to streams on other replicas.
type outbox struct {
	r *Replica

	mu      sync.Mutex          // guards all below
	copies  map[string]*outCopy // by key without number
	count   int                 // messages of all
	looking bool                // a goroutine does
}

// An outCopy is what one copy has sent, oldest first.
type outCopy struct {
	digest sessionDigest
	base   string // key of a message, without the store's prefix and the number
	sent   []*outMessage
}

type outMessage struct {
	number int64
	size   int
	at     time.Time
	pause  time.Duration // after at, until it is looked for
}

// hint returns the hint that names a message which is in the store now.
func (o *outbox) hint(d sessionDigest, base string, number int64) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &outCopy{digest: d, base: base}
	if before := o.copies[base]; before != nil {
		c.sent = slices.Clone(before.sent[max(0, len(before.sent)-maxNamed):])
	}
	return c.name(append(c.sent, &outMessage{number: number}))
}

// add looks after a message whose hint is out.
func (o *outbox) add(d sessionDigest, base string, number int64, size int) {
	defer o.r.needSweeper() // the last copy may have gone meanwhile
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count >= maxOutbox {
		return
	}
	if o.copies == nil {
		o.copies = map[string]*outCopy{}
	}
	c := o.copies[base]
	if c == nil {
		c = &outCopy{digest: d, base: base}
		o.copies[base] = c
	}
	c.sent = append(c.sent, &outMessage{number, size, o.r.now(), remindAfter})
	o.count++
}

// name returns a hint about messages of c, without its kind: the session, the key of
// the last one, and the numbers of the others.
func (c *outCopy) name(messages []*outMessage) string {
	last := len(messages) - 1
	b := []byte(string(c.digest) + " " + c.base)
	b = strconv.AppendInt(b, messages[last].number, 10)
	for _, m := range messages[:last] {
		b = strconv.AppendInt(append(b, ' '), m.number, 10)
	}
	return string(b)
}

// drop forgets the messages that match.
func (o *outbox) drop(match func(*outMessage) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count = 0
	for base, c := range o.copies {
		c.sent = slices.DeleteFunc(c.sent, match)
		if o.count += len(c.sent); len(c.sent) == 0 {
			delete(o.copies, base)
		}
	}
}

func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.copies) == 0
}

// sweep looks after what has lain for a while. The sweeper calls it.
func (o *outbox) sweep() {
	now := o.r.now()
	if o.empty() {
		return
	}
	o.drop(func(m *outMessage) bool { return since(now, m.at) >= outTTL })
	o.mu.Lock()
	defer o.mu.Unlock()
	due, bytes := []*outCopy(nil), 0
	for _, c := range o.copies {
		some := &outCopy{digest: c.digest, base: c.base}
		for _, m := range c.sent {
			if since(now, m.at) >= m.pause && bytes < remindBytes {
				bytes += m.size
				some.sent = append(some.sent, m)
			}
		}
		if len(some.sent) > 0 {
			due = append(due, some)
		}
	}
	if len(due) == 0 || o.looking {
		return
	}
	for _, c := range due {
		for _, m := range c.sent {
			m.pause *= 2
		}
	}
	o.looking = true
	o.r.owned.run(func() {
		o.remind(due)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.looking = false
	})
}

// remind names messages again that are still there, and forgets the others. A store
// that fails is left alone until the next round: nothing here waits for it twice.
func (o *outbox) remind(due []*outCopy) {
	ctx := context.Background()
	var keys []string
	for _, c := range due {
		for _, m := range c.sent {
			keys = append(keys, c.key(m))
		}
	}
	there, err := o.r.fetch(ctx, keys)
	if err != nil {
		return
	}
	fetched := map[*outMessage]bool{}
	for _, c := range due {
		for _, m := range c.sent {
			fetched[m] = there[c.key(m)] == nil
		}
	}
	o.drop(func(m *outMessage) bool { return fetched[m] })
	for _, c := range due {
		left := slices.DeleteFunc(c.sent, func(m *outMessage) bool { return fetched[m] })
		for some := range slices.Chunk(left, maxNamed+1) {
			if o.r.nameAgain(ctx, c.digest, c.name(some)) != nil {
				return
			}
		}
	}
}

func (c *outCopy) key(m *outMessage) string { return c.base + strconv.FormatInt(m.number, 10) }

// nameAgain sends a hint about messages to who holds the client's stream now. A
// claim of this replica's own without a stream is an old one.
func (r *Replica) nameAgain(ctx context.Context, d sessionDigest, about string) error {
	values, err := r.store.get(ctx, r.keys.stream(d))
	if err != nil {
		return err
	}
	switch holder := holderOf(values[0]); holder {
	case "":
	case r.hints.self:
		if c, ok := r.byDigest(d); ok {
			c.toStream(about[len(d)+1:])
		}
	default:
		return r.hints.publish(ctx, holder, hintOut, about)
	}
	return nil
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

// namedKeys returns the keys of the messages that an item of an inbox names, in the
// order in which they were sent.
func namedKeys(item string) (keys []string) {
	key, earlier, _ := strings.Cut(item, " ")
	base := key[:strings.LastIndexByte(key, '.')+1]
	for _, number := range strings.Fields(earlier) {
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > 0 && len(keys) < maxNamed {
			keys = append(keys, base+strconv.FormatInt(n, 10))
		}
	}
	return append(keys, key)
}

// maxSentKeys is how many messages from elsewhere a copy remembers to have sent to
// the client: they come no second time though deleting them failed.
const maxSentKeys = 128

// sentKeys are the keys of the last messages that were sent, oldest first.
type sentKeys []string

func (s sentKeys) add(keys []string) sentKeys {
	s = append(s, keys...)
	return slices.Clone(s[max(0, len(s)-maxSentKeys):])
}
