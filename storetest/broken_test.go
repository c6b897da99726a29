package storetest

import (
	"bytes"
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sessionshare/sessionshare"
)

// A mistake is one way to get the contract wrong.
type mistake struct {
	name string
	rule string
	// also names the other cases that cannot but fail with it; a name that ends
	// with ? depends on luck.
	also string
	// make breaks a store. The replicas share the lab.
	make func(s *broken)
}

// TestBrokenStores runs the whole suite against stores with one mistake each.
// Each must be caught by the case meant for it, and by no other but those
// that are named with it.
func TestBrokenStores(t *testing.T) {
	caught := map[string]bool{}
	for _, list := range [][]mistake{byteMistakes, lifeMistakes, touchMistakes, batchMistakes, swapMistakes, hintMistakes, otherMistakes} {
		for _, m := range list {
			caught[m.rule] = true
			t.Run(m.rule+"/"+m.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { m.try(t) })
			})
		}
	}
	for _, c := range cases() {
		if !caught[c.name] {
			t.Errorf("no broken store fails the case %s", c.name)
		}
	}
}

func (m mistake) try(t *testing.T) {
	allowed := map[string]bool{m.rule: true} // name: must fail
	for _, name := range strings.Fields(m.also) {
		allowed[strings.TrimSuffix(name, "?")] = !strings.HasSuffix(name, "?")
	}
	for _, c := range cases() {
		l := &lab{MemoryStore: sessionshare.NewMemoryStore(), stash: map[string]stashed{}}
		opts := Options{}
		if m.rule == "stalled" {
			opts.Stall = l.hang.stall
		}
		must, may := allowed[c.name]
		r := record(c, m.replica(l), m.replica(l), opts)
		for tries := 1; must && !r.failed && tries < 5; tries++ {
			// A race is not lost each time on a machine that is busy.
			r = record(c, m.replica(l), m.replica(l), opts)
		}
		switch {
		case r.failed && !may:
			t.Errorf("also caught by %s: %s", c.name, r.message)
		case r.failed && !strings.Contains(r.message, c.sentence):
			t.Errorf("%s did not say which sentence is broken: %s", c.name, r.message)
		case !r.failed && must:
			t.Errorf("not caught by %s", c.name)
		}
	}
	time.Sleep(time.Second) // what a mistake left running ends
}

func (m mistake) replica(l *lab) sessionshare.SharedStore {
	s := &broken{lab: l}
	m.make(s)
	return s
}

// lab is the backend of broken stores: it remembers what a good store forgets.
type lab struct {
	*sessionshare.MemoryStore
	hang     hang
	calls    atomic.Int64 // of all methods
	sweeping atomic.Int32 // sweeps that run
	mu       sync.Mutex   // guards all below
	stash    map[string]stashed
	subs     []string // all channels that were ever subscribed
}

// stashed is the last value of a key, deleted and expired or not.
type stashed struct {
	value   []byte
	expires time.Time
	deleted bool
}

func (l *lab) last(key string) (stashed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.stash[key]
	return e, ok
}

// pause makes the middle of a mistake last until others have done something. It
// does not sleep: in virtual time that would wait for all of them.
func (l *lab) pause() {
	for start, tries := l.calls.Load(), 0; l.calls.Load() < start+3 && tries < 200; tries++ {
		runtime.Gosched()
	}
}

// expired returns the value of a key that has expired, by itself.
func (l *lab) expired(key string) ([]byte, bool) {
	e, ok := l.last(key)
	return e.value, ok && !e.deleted && !time.Now().Before(e.expires)
}

// left returns how long a key has to live.
func (l *lab) left(key string) time.Duration {
	e, ok := l.last(key)
	if !ok || e.deleted {
		return 0
	}
	return max(0, time.Until(e.expires))
}

func (l *lab) note(key string, value []byte, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.stash[key]
	if value != nil {
		e.value = bytes.Clone(value)
	}
	e.expires, e.deleted = time.Now().Add(ttl), false
	l.stash[key] = e
}

// The good methods of the lab.

func (l *lab) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	err := l.MemoryStore.Put(ctx, key, value, ttl)
	if err == nil {
		l.note(key, value, ttl)
	}
	return err
}

func (l *lab) Delete(ctx context.Context, key string) error {
	l.mu.Lock()
	if e, ok := l.stash[key]; ok && ctx.Err() == nil {
		e.deleted = true
		l.stash[key] = e
	}
	l.mu.Unlock()
	return l.MemoryStore.Delete(ctx, key)
}

func (l *lab) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	found, err := l.MemoryStore.Touch(ctx, key, ttl)
	if found {
		l.note(key, nil, ttl)
	}
	return found, err
}

func (l *lab) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	swapped, err := l.MemoryStore.CompareAndSwap(ctx, key, old, new, ttl)
	if swapped {
		l.note(key, new, ttl)
	}
	return swapped, err
}

var _ sessionshare.SharedStore = (*broken)(nil)

// broken is a store in which single methods are replaced by wrong ones.
type broken struct {
	*lab
	key       func(string) string
	get       func(ctx context.Context, key string) ([]byte, bool, error)
	put       func(ctx context.Context, key string, value []byte, ttl time.Duration) error
	del       func(ctx context.Context, key string) error
	touch     func(ctx context.Context, key string, ttl time.Duration) (bool, error)
	getMany   func(ctx context.Context, keys []string) ([][]byte, error)
	putDelete func(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error
	swap      func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error)
	publish   func(ctx context.Context, channel string, msg []byte) error
	subscribe func(ctx context.Context, channels []string, deliver func(string, []byte)) error
	sweep     func(ctx context.Context) error
}

// k is called by every method that has a key.
func (s *broken) k(key string) string {
	s.calls.Add(1)
	if s.key != nil {
		return s.key(key)
	}
	return key
}

func (s *broken) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if s.get != nil {
		return s.get(ctx, s.k(key))
	}
	return s.lab.Get(ctx, s.k(key))
}

func (s *broken) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if s.put != nil {
		return s.put(ctx, s.k(key), value, ttl)
	}
	return s.lab.Put(ctx, s.k(key), value, ttl)
}

func (s *broken) Delete(ctx context.Context, key string) error {
	if s.del != nil {
		return s.del(ctx, s.k(key))
	}
	return s.lab.Delete(ctx, s.k(key))
}

func (s *broken) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	if s.touch != nil {
		return s.touch(ctx, s.k(key), ttl)
	}
	return s.lab.Touch(ctx, s.k(key), ttl)
}

func (s *broken) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	if s.getMany != nil {
		return s.getMany(ctx, keys)
	}
	mapped := slices.Clone(keys)
	for i, key := range mapped {
		mapped[i] = s.k(key)
	}
	return s.lab.GetMany(ctx, mapped)
}

func (s *broken) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	if s.putDelete != nil {
		return s.putDelete(ctx, put, value, ttl, del)
	}
	return s.lab.PutDelete(ctx, s.k(put), value, ttl, s.k(del))
}

func (s *broken) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if s.swap != nil {
		return s.swap(ctx, s.k(key), old, new, ttl)
	}
	return s.lab.CompareAndSwap(ctx, s.k(key), old, new, ttl)
}

func (s *broken) Publish(ctx context.Context, channel string, msg []byte) error {
	if s.publish != nil {
		return s.publish(ctx, channel, msg)
	}
	return s.lab.Publish(ctx, channel, msg)
}

func (s *broken) Subscribe(ctx context.Context, channels []string, deliver func(string, []byte)) error {
	s.mu.Lock()
	s.subs = append(s.subs, channels...)
	s.mu.Unlock()
	if s.subscribe != nil {
		return s.subscribe(ctx, channels, deliver)
	}
	return s.lab.Subscribe(ctx, channels, deliver)
}

func (s *broken) Sweep(ctx context.Context) error {
	if s.sweep != nil {
		return s.sweep(ctx)
	}
	return s.lab.Sweep(ctx)
}

// keys returns all keys that were ever put.
func (l *lab) keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.stash))
}
