package sessionshare

import (
	"context"
	"time"
)

// MaxKeyBytes and MaxValueBytes bound what the library hands to a
// [SharedStore]. An adapter may rely on them.
const (
	MaxKeyBytes   = 200
	MaxValueBytes = 256 << 10
)

// A SharedStore is what the replicas of a gateway share: a small key-value
// store with expiry, reached by all of them. Three methods are enough, so that
// a gateway plugs in the store it has; ready adapters are in stores/, and
// package storetest checks a new one against every sentence below.
//
// What holds for all methods:
//
//   - Concurrency: called by many goroutines at once. Operations on one key are
//     linearizable across all replicas: what a write that returned nil stored,
//     every read that begins afterwards sees, on every replica. Reads go to the
//     primary, never to a copy that may lag. (A deposed primary may answer until
//     it notices: an adapter's paper says for how long.)
//   - Time: ttl is a positive duration on the store's own clock. The clocks of
//     the replicas play no part. A ttl that is zero or negative is an error and
//     changes nothing. An expired key is missing, at once and for every method,
//     purged or not. Expiry may be late by the store's precision (a second), but
//     is never early.
//   - Failure: a miss is an outcome, an outage is an error, and they never look
//     alike. An error leaves the outcome open: the write may have been applied,
//     or be applied later, even after a later Delete. Errors name no key and no
//     value.
//   - Context: a call returns soon after ctx ends (50 ms), be it by deadline or
//     by cancellation, whatever the store does, with an error for which
//     errors.Is(err, ctx.Err()) holds. Where the driver does not get there alone,
//     the adapter leaves the call behind.
//   - Bytes: values are copied at the border. The caller may change a slice
//     after Put returned, be it with an error, and one that Get gave it.
//   - Bounds: keys are 1 to [MaxKeyBytes] bytes of [a-z0-9._-]. Values are 1 to
//     [MaxValueBytes] bytes, any bytes, never empty.
//
// A store that evicts keys under memory pressure, or that loses acknowledged
// writes in a failover, loses close marks: sessions that were deleted may be
// served again. It must be set up not to.
type SharedStore interface {
	// Get returns the value of key. A missing or expired key is (nil, false, nil).
	Get(ctx context.Context, key string) (value []byte, found bool, err error)

	// Put stores value under key for ttl. It replaces the value and the life that
	// the key had, be it longer or shorter.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error

	// Delete removes key. Removing a missing key is no error.
	Delete(ctx context.Context, key string) error
}

// A Toucher is a [SharedStore] that can extend the life of a key in one step.
// Without it the library reads and puts the record again, which is right, but
// costs three calls.
type Toucher interface {
	// Touch sets the life of key to ttl from now if key is there, and reports
	// whether it was. It never creates a key, never revives one that has expired
	// or was deleted, and never changes a value. Touch racing a Delete never
	// leaves the key behind. If more than ttl is left, the life may stay as it is.
	Touch(ctx context.Context, key string, ttl time.Duration) (found bool, err error)
}

// A BatchGetter is a [SharedStore] that reads several keys in one round trip.
type BatchGetter interface {
	// GetMany returns the values of keys, in their order, as of one moment; nil
	// for a missing key. It is called with 1 to 128 keys.
	GetMany(ctx context.Context, keys []string) ([][]byte, error)
}

// A PutDeleter is a [SharedStore] that can put one key and delete another in
// one round trip. The library closes sessions with it: the mark is put, then
// the record is deleted.
type PutDeleter interface {
	// PutDelete is Put(put, value, ttl) followed by Delete(del), another key. It is
	// in that order also when it is cut in the middle, or when the store refuses
	// the put: del is gone only if put is there.
	PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error
}

// A CompareAndSwapper is a [SharedStore] that can replace a value only if
// nobody else changed it meanwhile.
type CompareAndSwapper interface {
	// CompareAndSwap stores new under key for ttl if the value of key is old, and
	// reports whether it did. A nil old means that key must be missing. If it
	// reports false, neither the value nor the life of key has changed. new is
	// never empty. An adapter does not repeat a swap by itself: one whose answer
	// was lost would come out as false.
	CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (swapped bool, err error)
}

// A PubSub is a [SharedStore] that carries hints between replicas. A hint says
// "look now": it may be lost, late or repeated, and truth is in the keys. It
// makes things faster, never right.
type PubSub interface {
	// Publish sends msg (1 byte to 4 KiB, any bytes) to all who are subscribed to
	// channel, on all replicas, this one included. Nobody subscribed is no error.
	// Channels are formed like keys.
	Publish(ctx context.Context, channel string, msg []byte) error

	// Subscribe calls deliver for each message on one of channels (1 to 16), until
	// ctx is done or the subscription breaks; then it returns an error that says
	// which. It calls deliver from one goroutine, in the order in which one
	// publisher published. deliver returns fast and may keep msg. Subscribe does
	// not hide a gap that it can know of: when messages may have been missed it
	// returns, and the caller subscribes again.
	Subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error
}

// A Sweeper is a [SharedStore] that keeps expired keys until somebody removes
// them. A [Replica] calls Sweep in the background, rarely and with jitter, so
// that nobody must remember it.
type Sweeper interface {
	// Sweep removes expired keys, in batches that do not stall the store. It
	// removes no key that is alive, nor one that is put while it runs. Several
	// replicas may sweep at once.
	Sweep(ctx context.Context) error
}

// as finds an optional ability of a store, looking through wrappers that have
// the method Unwrap() SharedStore.
func as[T any](s SharedStore) (ability T, ok bool) {
	for s != nil {
		if a, ok := s.(T); ok {
			return a, true
		}
		u, ok := s.(interface{ Unwrap() SharedStore })
		if !ok {
			break
		}
		s = u.Unwrap()
	}
	return ability, false
}
