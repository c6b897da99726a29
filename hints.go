package sessionshare

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Hints are what replicas tell each other where the store carries messages
// (PubSub): "look now". One may be lost, late or repeated; truth is in the keys,
// and everything is right without hints, only slower. A hint holds digests and
// tags, never a session ID or a secret.
//
// A hint is a kind, then what it is about. Those to all replicas go to one
// channel, those to one replica to that replica's own.
const (
	hintClosed   = 'c' // session digest
	hintEndpoint = 'e' // key of the endpoint's mark
	hintLook     = 'l' // session digest: state or stream has changed, a call was cancelled
	hintReply    = 'r' // session digest: an answer for a question asked there
	hintOut      = 'o' // session digest and key: a message for the client's stream held there
	hintNotes    = 'n' // notifications without a body of their own, see forward.go
	hintProbe    = 'p' // to oneself: is the subscription up?
)

const (
	channelAll = "all"
	channelTo  = "to."

	// maxHint is what a PubSub carries at least.
	maxHint = 4 << 10

	// hintedRecheck takes the place of DefaultRecheckInterval while hints come.
	hintedRecheck = 30 * time.Second

	probeEvery     = 10 * time.Second // while the subscription is up
	probeFirst     = 5 * time.Millisecond
	probeLost      = 3 * time.Second // without it the subscription counts as broken
	subscribeRetry = 5 * time.Second // at most, between attempts
)

// hints is a Replica's subscription, and how it publishes.
type hints struct {
	r    *Replica
	pub  PubSub // nil: the store carries no hints
	self string // this replica's tag, the last part of its own channel

	started atomic.Bool
	up      atomic.Bool // a probe has come back lately

	pulse chan string // names of probes that have come back; what finds it full is lost

	// missed are hints about sessions that are not hosted here: one may be about to
	// be resumed from what was read before.
	mu     sync.Mutex // guards missed
	missed map[sessionDigest]struct{}
}

// maxMissed bounds the hints remembered for sessions that are not hosted here.
const maxMissed = 4096

func (k *hints) miss(d sessionDigest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.missed == nil || len(k.missed) >= maxMissed {
		k.missed = map[sessionDigest]struct{}{}
	}
	k.missed[d] = struct{}{}
}

// missedOne reports whether a hint was missed about a session that is hosted now.
func (k *hints) missedOne(d sessionDigest) bool {
	if k.pub == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, missed := k.missed[d]
	delete(k.missed, d)
	return missed
}

// newTag returns a name nobody else has: n letters and digits that may stand in
// keys.
func newTag(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b)
}

const replicaTag = 8 // letters of a replica's tag

// start subscribes, once, with the first request: what a copy sends before hints
// are up does not reach a stream elsewhere.
func (k *hints) start() {
	if k.pub == nil || k.started.Load() || k.r.owned.signalled() || !k.started.CompareAndSwap(false, true) {
		return
	}
	k.r.owned.run(k.run)
}

// run keeps a subscription up until Shutdown.
func (k *hints) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k.r.owned.run(func() {
		select {
		case <-k.r.owned.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	pause := probeFirst
	for ctx.Err() == nil {
		was := k.r.now()
		k.subscribe(ctx)
		if since(k.r.now(), was) > subscribeRetry {
			pause = probeFirst
		}
		sleep(ctx, jitter(pause))
		pause = min(2*pause, subscribeRetry)
	}
}

// subscribe subscribes and returns when the subscription has broken. It is up
// when a hint to oneself has come back, and broken when one does not.
func (k *hints) subscribe(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broken := make(chan struct{})
	k.r.owned.run(func() {
		defer close(broken)
		channels := []string{k.r.keys.prefix + channelAll, k.r.keys.prefix + channelTo + k.self}
		err := guarded(func() error {
			return k.pub.Subscribe(ctx, channels, func(_ string, msg []byte) { k.receive(msg) })
		})
		if ctx.Err() == nil {
			k.r.log.Warn("sessionshare: the subscription to hints broke, subscribing again", "error", err)
		}
	})
	k.watch(ctx, broken)
	cancel()
	select {
	case <-broken:
	case <-time.After(probeLost): // a store that ignores its context; its goroutine is still accounted for
	}
	if k.up.CompareAndSwap(true, false) {
		k.r.hintsLost()
	}
}

// watch sends probes until the subscription is broken.
func (k *hints) watch(ctx context.Context, broken <-chan struct{}) {
	for k.probe(ctx, broken) {
		if !k.up.Swap(true) {
			k.r.log.Info("sessionshare: hints are up")
			k.r.hintsFound()
		}
		sleepOr(ctx, probeEvery, broken)
	}
}

// probe sends hints to this replica until one comes back, and returns false if the
// subscription is broken, or mute. They have a name: one that was sent before, and
// comes late, says nothing about the subscription of now.
func (k *hints) probe(ctx context.Context, broken <-chan struct{}) (back bool) {
	name, began, pause := newTag(replicaTag), k.r.now(), probeFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for since(k.r.now(), began) <= probeLost {
		select {
		case <-timer.C:
			_ = k.publish(ctx, k.self, hintProbe, name)
			timer.Reset(pause)
			pause = min(2*pause, time.Second)
		case came := <-k.pulse:
			if came == name {
				return true
			}
		case <-broken:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) { sleepOr(ctx, d, nil) }

func sleepOr(ctx context.Context, d time.Duration, stop <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	case <-ctx.Done():
	}
}

// publish sends a hint to the replica with this tag, or to all. It is best effort
// and bounded in time.
func (k *hints) publish(ctx context.Context, to string, kind byte, about string) error {
	if k.pub == nil {
		return nil
	}
	channel := k.r.keys.prefix + channelAll
	if to != "" {
		channel = k.r.keys.prefix + channelTo + to
	}
	msg := append([]byte{kind}, about...)
	if len(msg) > maxHint {
		return errHintLarge
	}
	_, err := reached(ctx, k.r.store, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.pub.Publish(ctx, channel, msg)
	})
	return err
}

var errHintLarge = errors.New("sessionshare: hint too large")

// publishSoon is publish on a goroutine of its own, for callers in a hurry.
func (k *hints) publishSoon(to string, kind byte, about string) {
	if k.pub != nil {
		k.r.owned.run(func() { _ = k.publish(context.Background(), to, kind, about) })
	}
}

// receive acts on a hint. It returns fast: what needs the store goes elsewhere.
func (k *hints) receive(msg []byte) {
	if len(msg) == 0 || len(msg) > maxHint {
		return
	}
	kind, about := msg[0], string(msg[1:])
	switch kind {
	case hintProbe:
		select {
		case k.pulse <- about:
		default:
		}
	case hintEndpoint:
		k.r.hosted(func(c *hostedCopy) bool {
			if k.r.keys.endpoint(c.rec.endpoint()) == about {
				c.lookSoon()
			}
			return true
		})
	case hintClosed, hintLook:
		if c, ok := k.r.byDigest(sessionDigest(about)); ok {
			c.lookSoon()
		} else if len(about) == digestLen {
			k.miss(sessionDigest(about))
		}
	case hintReply:
		k.r.asks.look()
	case hintOut:
		if digest, key, ok := strings.Cut(about, " "); ok {
			if c, ok := k.r.byDigest(sessionDigest(digest)); ok {
				c.receiveOut(key)
			}
		}
	case hintNotes:
		k.r.receiveNotes(about)
	}
}

// hintsFound and hintsLost are called when hints begin to come, and when they
// stop: then some may have been missed, and every copy is due for a recheck.
func (r *Replica) hintsFound() {
	r.hosted(func(c *hostedCopy) bool { c.lookSoon(); return true })
}

func (r *Replica) hintsLost() {
	r.hosted(func(c *hostedCopy) bool {
		c.mu.Lock()
		c.looked = time.Time{}
		c.mu.Unlock()
		c.follow("")
		return true
	})
}

// hintedKind is the look that a hint is worth.
func (c *hostedCopy) hintedKind() lookKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inDoubt(c.r.now()) {
		return lookAll
	}
	return lookHinted
}

// lookSoon makes the copy look at the store now, in the background. Hints that
// come meanwhile make it look once more.
func (c *hostedCopy) lookSoon() {
	c.mu.Lock()
	start := !c.hinted && !c.ending
	c.hinted, c.hintedAgain = true, !start
	c.mu.Unlock()
	if !start {
		return
	}
	c.r.owned.run(func() {
		for again := true; again; {
			_ = c.recheck(context.Background(), c.hintedKind(), false)
			if c.r.store != nil {
				c.r.lookForCancels(c.longCalls(c.r.now(), 0))
			}
			c.mu.Lock()
			again = c.hintedAgain
			c.hinted, c.hintedAgain = again, false
			c.mu.Unlock()
		}
	})
}
