package sessionshare

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

var errStoreDown = errors.New("store: connection refused")

// A storeCall is one call of a store, as faults see it.
type storeCall struct {
	op   string   // Get, GetMany, Put, Delete, Touch, PutDelete, CompareAndSwap
	keys []string // of PutDelete: the put one, then the deleted one
}

func (c storeCall) write() bool { return c.op != "Get" && c.op != "GetMany" }

// about reports whether a key of the call contains part.
func (c storeCall) about(part string) bool {
	return slices.ContainsFunc(c.keys, func(k string) bool { return strings.Contains(k, part) })
}

// A fault is what happens to one call. The zero fault is none.
type fault struct {
	delay time.Duration   // before the call reaches the backend
	gate  <-chan struct{} // the call waits for it, after delay
	deaf  bool            // while it waits it ignores its context

	err   error         // what the caller gets; nil: what the backend says
	apply applyFault    // what becomes of the call when err is set
	late  time.Duration // with applyLate

	after   <-chan struct{} // the caller waits for it, after the call was answered
	garbage []byte          // what a read returns instead of every value it finds
}

type applyFault int

const (
	applyNever applyFault = iota // the backend never sees the call
	applyNow                     // applied, but the acknowledgement is lost
	applyLate                    // applied after fault.late, even after a later Delete
)

// A faultBackend is the one truth that the views of several replicas share.
type faultBackend struct {
	*MemoryStore
	late sync.WaitGroup // writes still to be applied
}

func newFaultBackend() *faultBackend { return &faultBackend{MemoryStore: NewMemoryStore()} }

// dump returns what is alive.
func (b *faultBackend) dump() map[string]memoryEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]memoryEntry{}
	for k := range b.entries {
		if e, ok := b.alive(k, time.Now()); ok {
			out[k] = e
		}
	}
	return out
}

// keys returns the live keys that contain part.
func (b *faultBackend) keys(part string) (out []string) {
	for k := range b.dump() {
		if strings.Contains(k, part) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// lose removes the keys that contain part, as a failover that lost data.
func (b *faultBackend) lose(part string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.entries {
		if strings.Contains(k, part) {
			delete(b.entries, k)
		}
	}
}

// A faultView is one replica's way to the backend: each has faults of its own, so
// that one replica can be cut off while the others go on.
type faultView struct {
	backend *faultBackend

	mu     sync.Mutex // guards all below
	decide func(storeCall) fault
	counts map[string]int
	seen   []storeCall
}

func (b *faultBackend) view() *faultView {
	return &faultView{backend: b, counts: map[string]int{}}
}

// set makes decide choose the fault of every call from now on; nil: none.
func (v *faultView) set(decide func(storeCall) fault) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.decide = decide
}

// heal ends all faults of calls to come.
func (v *faultView) heal() { v.set(nil) }

// down makes all calls fail at once, unapplied.
func (v *faultView) down() {
	v.set(func(storeCall) fault { return fault{err: errStoreDown} })
}

// partition makes writes fail while reads work, or reads while writes work.
func (v *faultView) partition(writes, reads bool) {
	v.set(func(c storeCall) fault {
		if c.write() && writes || !c.write() && reads {
			return fault{err: errStoreDown}
		}
		return fault{}
	})
}

// hang makes the calls that match wait until release is called. deaf ones ignore
// their context.
func (v *faultView) hang(deaf bool, match func(storeCall) bool) (release func()) {
	gate := make(chan struct{})
	v.set(func(c storeCall) fault {
		if match == nil || match(c) {
			return fault{gate: gate, deaf: deaf}
		}
		return fault{}
	})
	return sync.OnceFunc(func() {
		v.heal()
		close(gate)
	})
}

// loseAcks applies the writes that match, and reports that they failed.
func (v *faultView) loseAcks(match func(storeCall) bool) {
	v.set(func(c storeCall) fault {
		if c.write() && (match == nil || match(c)) {
			return fault{err: errStoreDown, apply: applyNow}
		}
		return fault{}
	})
}

// delayWrites reports that writes which match failed, and applies them after d.
func (v *faultView) delayWrites(d time.Duration, match func(storeCall) bool) {
	v.set(func(c storeCall) fault {
		if c.write() && (match == nil || match(c)) {
			return fault{err: errStoreDown, apply: applyLate, late: d}
		}
		return fault{}
	})
}

// count returns how many calls of these operations came, or of all.
func (v *faultView) count(ops ...string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for op, c := range v.counts {
		if len(ops) == 0 || slices.Contains(ops, op) {
			n += c
		}
	}
	return n
}

// writes returns how many calls that change something came.
func (v *faultView) writes() int {
	return v.count("Put", "Delete", "Touch", "PutDelete", "CompareAndSwap")
}

// calls returns what came since the last call of calls.
func (v *faultView) calls() []storeCall {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := v.seen
	v.seen = nil
	return seen
}

func (v *faultView) meet(op string, keys ...string) fault {
	c := storeCall{op, slices.Clone(keys)}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts[op]++
	v.seen = append(v.seen, c)
	if v.decide == nil {
		return fault{}
	}
	return v.decide(c)
}

// wait is the part of a fault that takes time.
func (f fault) wait(ctx context.Context) error {
	if f.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if f.delay > 0 {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// faulted makes one call of the backend under f.
func faulted[T any](ctx context.Context, v *faultView, f fault, call func(context.Context) (T, error)) (T, error) {
	if err := f.wait(ctx); err != nil {
		return *new(T), err
	}
	free := context.WithoutCancel(ctx)
	switch {
	case f.err == nil:
		if f.deaf {
			ctx = free
		}
		value, err := call(ctx)
		if f.after != nil {
			<-f.after
		}
		return value, err
	case f.apply == applyNow:
		_, _ = call(free)
	case f.apply == applyLate:
		v.backend.late.Go(func() {
			time.Sleep(f.late)
			_, _ = call(free)
		})
	}
	return *new(T), f.err
}

func (f fault) spoil(values [][]byte) {
	for i := range values {
		if f.garbage != nil && values[i] != nil {
			values[i] = slices.Clone(f.garbage)
		}
	}
}

func (v *faultView) Get(ctx context.Context, key string) ([]byte, bool, error) {
	f := v.meet("Get", key)
	values, err := faulted(ctx, v, f, func(ctx context.Context) ([][]byte, error) {
		return v.backend.GetMany(ctx, []string{key})
	})
	if err != nil {
		return nil, false, err
	}
	f.spoil(values)
	return values[0], values[0] != nil, nil
}

func (v *faultView) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	f := v.meet("GetMany", keys...)
	values, err := faulted(ctx, v, f, func(ctx context.Context) ([][]byte, error) {
		return v.backend.GetMany(ctx, keys)
	})
	f.spoil(values)
	return values, err
}

func (v *faultView) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	value = slices.Clone(value)
	_, err := faulted(ctx, v, v.meet("Put", key), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.backend.Put(ctx, key, value, ttl)
	})
	return err
}

func (v *faultView) Delete(ctx context.Context, key string) error {
	_, err := faulted(ctx, v, v.meet("Delete", key), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.backend.Delete(ctx, key)
	})
	return err
}

func (v *faultView) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	return faulted(ctx, v, v.meet("Touch", key), func(ctx context.Context) (bool, error) {
		return v.backend.Touch(ctx, key, ttl)
	})
}

func (v *faultView) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	value = slices.Clone(value)
	_, err := faulted(ctx, v, v.meet("PutDelete", put, del), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.backend.PutDelete(ctx, put, value, ttl, del)
	})
	return err
}

func (v *faultView) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	old, new = slices.Clone(old), slices.Clone(new)
	return faulted(ctx, v, v.meet("CompareAndSwap", key), func(ctx context.Context) (bool, error) {
		return v.backend.CompareAndSwap(ctx, key, old, new, ttl)
	})
}

// plainStore hides everything but the three methods of a SharedStore, so that the
// paths of a store without abilities are tested.
type plainStore struct{ SharedStore }

// hintingStore is a view that also carries hints.
type hintingStore struct{ *faultView }

func (s hintingStore) Publish(ctx context.Context, channel string, msg []byte) error {
	_, err := faulted(ctx, s.faultView, s.meet("Publish", channel), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.backend.Publish(ctx, channel, msg)
	})
	return err
}

func (s hintingStore) Subscribe(ctx context.Context, channels []string, deliver func(string, []byte)) error {
	if f := s.meet("Subscribe", channels...); f.err != nil {
		return f.err
	}
	return s.backend.Subscribe(ctx, channels, deliver)
}

var (
	_ SharedStore       = plainStore{}
	_ Toucher           = (*faultView)(nil)
	_ BatchGetter       = (*faultView)(nil)
	_ PutDeleter        = (*faultView)(nil)
	_ CompareAndSwapper = (*faultView)(nil)
	_ PubSub            = hintingStore{}
)
