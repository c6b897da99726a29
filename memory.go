package sessionshare

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

// MemoryStore is a [SharedStore] in this process's memory, with every optional
// ability. It serves tests, examples and replicas within one process. What it
// holds ends with the process.
type MemoryStore struct {
	mu      sync.Mutex // guards all below
	entries map[string]memoryEntry
	puts    int // since the last sweep
	subs    map[*memorySub]struct{}
}

type memoryEntry struct {
	value   []byte // never changed after it was stored
	expires time.Time
}

// memorySub is one subscription: a queue that Subscribe empties. Publish closes
// the queue when it is full, and forgets the subscription: a gap ends it.
type memorySub struct {
	channels map[string]bool
	queue    chan memoryHint
}

type memoryHint struct {
	channel string
	msg     []byte
}

// memoryQueue is how many hints wait for a subscriber before one more breaks
// the subscription.
const memoryQueue = 1024

var (
	_ SharedStore       = (*MemoryStore)(nil)
	_ Toucher           = (*MemoryStore)(nil)
	_ BatchGetter       = (*MemoryStore)(nil)
	_ PutDeleter        = (*MemoryStore)(nil)
	_ CompareAndSwapper = (*MemoryStore)(nil)
	_ PubSub            = (*MemoryStore)(nil)
	_ Sweeper           = (*MemoryStore)(nil)
)

var (
	errTTL    = errors.New("sessionshare: ttl must be positive")
	errEmpty  = errors.New("sessionshare: value must not be empty")
	errMissed = errors.New("sessionshare: hints came faster than they were taken, some are missing")
)

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{entries: map[string]memoryEntry{}, subs: map[*memorySub]struct{}{}}
}

// alive returns the entry of key if it has not expired. m.mu is held.
func (m *MemoryStore) alive(key string, now time.Time) (memoryEntry, bool) {
	e, ok := m.entries[key]
	return e, ok && now.Before(e.expires)
}

// set stores a copy of value. m.mu is held. Every so often it removes what has
// expired, so that a store that nobody sweeps does not grow for ever.
func (m *MemoryStore) set(key string, value []byte, ttl time.Duration) {
	now := time.Now()
	m.entries[key] = memoryEntry{bytes.Clone(value), now.Add(ttl)}
	if m.puts++; m.puts > 1024 && m.puts > len(m.entries) {
		m.sweep(now)
	}
}

func (m *MemoryStore) sweep(now time.Time) {
	m.puts = 0
	maps.DeleteFunc(m.entries, func(_ string, e memoryEntry) bool { return !now.Before(e.expires) })
}

// Get implements [SharedStore].
func (m *MemoryStore) Get(ctx context.Context, key string) ([]byte, bool, error) {
	values, err := m.GetMany(ctx, []string{key})
	if err != nil {
		return nil, false, err
	}
	return values[0], values[0] != nil, nil
}

// GetMany implements [BatchGetter].
func (m *MemoryStore) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	values := make([][]byte, len(keys))
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for i, key := range keys {
		if e, ok := m.alive(key, now); ok {
			values[i] = bytes.Clone(e.value)
		}
	}
	return values, nil
}

// Put implements [SharedStore].
func (m *MemoryStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if err := checkPut(ctx, value, ttl); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(key, value, ttl)
	return nil
}

func checkPut(ctx context.Context, value []byte, ttl time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case ttl <= 0:
		return errTTL
	case len(value) == 0:
		return errEmpty
	}
	return nil
}

// Delete implements [SharedStore].
func (m *MemoryStore) Delete(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key)
	return nil
}

// PutDelete implements [PutDeleter].
func (m *MemoryStore) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	if err := checkPut(ctx, value, ttl); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(put, value, ttl)
	delete(m.entries, del)
	return nil
}

// Touch implements [Toucher].
func (m *MemoryStore) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if ttl <= 0 {
		return false, errTTL
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	e, ok := m.alive(key, now)
	if !ok {
		return false, nil
	}
	e.expires = now.Add(ttl)
	m.entries[key] = e
	return true, nil
}

// CompareAndSwap implements [CompareAndSwapper].
func (m *MemoryStore) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if err := checkPut(ctx, new, ttl); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.alive(key, time.Now())
	if ok != (old != nil) || ok && !bytes.Equal(e.value, old) {
		return false, nil
	}
	m.set(key, new, ttl)
	return true, nil
}

// Sweep implements [Sweeper].
func (m *MemoryStore) Sweep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep(time.Now())
	return nil
}

// Publish implements [PubSub].
func (m *MemoryStore) Publish(ctx context.Context, channel string, msg []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.subs {
		if s.channels[channel] {
			select {
			case s.queue <- memoryHint{channel, bytes.Clone(msg)}:
			default:
				delete(m.subs, s)
				close(s.queue)
			}
		}
	}
	return nil
}

// Subscribe implements [PubSub]. It breaks when deliver is so slow that hints
// would have to be dropped.
func (m *MemoryStore) Subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error {
	s := &memorySub{channels: map[string]bool{}, queue: make(chan memoryHint, memoryQueue)}
	for _, c := range channels {
		s.channels[c] = true
	}
	m.mu.Lock()
	m.subs[s] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.subs, s)
		m.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case h, ok := <-s.queue:
			if !ok {
				return errMissed
			}
			deliver(h.channel, h.msg)
		}
	}
}
