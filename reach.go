package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// reach is how a Replica reaches its store: every call is bounded in time, even
// on a store that ignores its context, survives the request it is made for, and
// is counted if it fails. It knows what the store can do.
type reach struct {
	store   SharedStore
	timeout time.Duration
	run     func(func()) // starts a goroutine that Shutdown knows of

	// The optional abilities; nil if the store lacks them.
	toucher    Toucher
	batch      BatchGetter
	putDeleter PutDeleter
	swapper    CompareAndSwapper
	sweeper    Sweeper

	slots  chan struct{} // one for each call under way
	errors atomic.Int64

	readFailed, writeFailed atomic.Bool // the last one
	back                    atomic.Bool // one has succeeded after one that failed
}

// noted notes the outcome of a read or a write.
func (s *reach) noted(failed *atomic.Bool, err error) error {
	if err != nil {
		failed.Store(true)
	} else if failed.Load() && failed.CompareAndSwap(true, false) {
		s.back.Store(true)
	}
	return err
}

func (s *reach) wrote(err error) error { return s.noted(&s.writeFailed, err) }

// maxStoreCalls bounds the calls under way at once, and with them what a store
// that never answers can pile up.
const maxStoreCalls = 4096

var errSlow = errors.New("sessionshare: no answer in time")

func newReach(store SharedStore, timeout time.Duration, run func(func())) *reach {
	s := &reach{store: store, timeout: timeout, run: run, slots: make(chan struct{}, maxStoreCalls)}
	s.toucher, _ = as[Toucher](store)
	s.batch, _ = as[BatchGetter](store)
	s.putDeleter, _ = as[PutDeleter](store)
	s.swapper, _ = as[CompareAndSwapper](store)
	s.sweeper, _ = as[Sweeper](store)
	return s
}

// abilities says what the store can do, for the log.
func (s *reach) abilities() string {
	names := []string{fmt.Sprintf("%T", s.store)}
	for _, a := range []struct {
		name string
		has  bool
	}{
		{"Toucher", s.toucher != nil}, {"BatchGetter", s.batch != nil},
		{"PutDeleter", s.putDeleter != nil}, {"CompareAndSwapper", s.swapper != nil}, {"Sweeper", s.sweeper != nil},
	} {
		if a.has {
			names = append(names, a.name)
		}
	}
	return strings.Join(names, " ")
}

// reached calls f within the bound, and counts its failure. After an error the
// outcome of f is open.
func reached[T any](ctx context.Context, s *reach, f func(context.Context) (T, error)) (T, error) {
	value, err := within(ctx, s.timeout, s.run, func(ctx context.Context) (T, error) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			return f(ctx)
		case <-ctx.Done():
			return *new(T), ctx.Err()
		}
	})
	if err != nil {
		s.errors.Add(1)
	}
	return value, err
}

// within calls f on a goroutine that run starts, and returns no later than after
// timeout, even if f ignores its context. It does not end with ctx: what f reads
// is news for others too, and a write must not be left half done because a client
// hung up. A panic of f is an error.
func within[T any](ctx context.Context, timeout time.Duration, run func(func()), f func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	answer := make(chan result, 1)
	run(func() {
		var res result
		defer func() {
			if p := recover(); p != nil {
				res.err = fmt.Errorf("sessionshare: panic: %v", p)
			}
			answer <- res
			cancel()
		}()
		res.value, res.err = f(ctx)
	})
	select {
	case res := <-answer:
		return res.value, res.err
	case <-ctx.Done():
	}
	select {
	case res := <-answer: // it came just in time
		return res.value, res.err
	default:
		return *new(T), errSlow
	}
}

// guarded calls f, which is the host's. A panic is an error: on a goroutine of this
// library nobody else catches it, and it would be the end of the process.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sessionshare: panic: %v", p)
		}
	}()
	return f()
}

// get reads keys: as of one moment if the store can, else one after the other,
// in the order given. All together have one timeout.
func (s *reach) get(ctx context.Context, keys ...string) ([][]byte, error) {
	values, err := reached(ctx, s, func(ctx context.Context) ([][]byte, error) {
		if s.batch != nil {
			values, err := s.batch.GetMany(ctx, keys)
			if err == nil && len(values) != len(keys) {
				err = fmt.Errorf("sessionshare: the store returned %d values for %d keys", len(values), len(keys))
			}
			return values, err
		}
		values := make([][]byte, len(keys))
		for i, key := range keys {
			value, found, err := s.store.Get(ctx, key)
			if err != nil {
				return nil, err
			}
			if found {
				values[i] = value
				if value == nil {
					values[i] = []byte{}
				}
			}
		}
		return values, nil
	})
	return values, s.noted(&s.readFailed, err)
}

func (s *reach) put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	_, err := reached(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.Put(ctx, key, value, ttl)
	})
	return s.wrote(err)
}

func (s *reach) delete(ctx context.Context, key string) error {
	_, err := reached(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.Delete(ctx, key)
	})
	return err
}

// touch extends the life of key. The store is a Toucher.
func (s *reach) touch(ctx context.Context, key string, ttl time.Duration) (found bool, err error) {
	found, err = reached(ctx, s, func(ctx context.Context) (bool, error) {
		return s.toucher.Touch(ctx, key, ttl)
	})
	return found, s.wrote(err)
}

// swap replaces old, nil for a missing key, by new. The store is a
// CompareAndSwapper.
func (s *reach) swap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (swapped bool, err error) {
	return reached(ctx, s, func(ctx context.Context) (bool, error) {
		return s.swapper.CompareAndSwap(ctx, key, old, new, ttl)
	})
}

// markFirst stores a close mark and reports whether this is the one that closed
// the session: value is nobody else's. On a store that cannot swap, two that do so
// at the same moment both are.
func (s *reach) markFirst(ctx context.Context, mark string, value []byte, ttl time.Duration) (first bool, err error) {
	if s.swapper == nil {
		values, err := s.get(ctx, mark)
		if err != nil {
			return false, err
		}
		if values[0] != nil {
			return bytes.Equal(values[0], value), nil
		}
		return true, s.put(ctx, mark, value, ttl)
	}
	first, err = s.swap(ctx, mark, nil, value, ttl)
	if err != nil || first {
		return first, err
	}
	// It may be ours, of an attempt whose outcome was open.
	values, err := s.get(ctx, mark)
	return err == nil && bytes.Equal(values[0], value), err
}

// mark stores a close mark and then removes the record that it shadows. It fails
// only if the mark could not be stored: a record that stays behind is harmless.
func (s *reach) mark(ctx context.Context, mark string, value []byte, ttl time.Duration, record string) error {
	if record != "" && s.putDeleter != nil {
		_, err := reached(ctx, s, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.putDeleter.PutDelete(ctx, mark, value, ttl, record)
		})
		return s.wrote(err)
	}
	if err := s.put(ctx, mark, value, ttl); err != nil {
		return err
	}
	if record != "" {
		_ = s.delete(ctx, record)
	}
	return nil
}
