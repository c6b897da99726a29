package sessionshare

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// A simStore is one replica's store in the simulation: a faultView whose reads
// and writes the model watches.
type simStore struct {
	*faultView
	n      *simNode
	sights *simSights
}

// simHintingStore is a simStore that carries hints.
type simHintingStore struct{ simStore }

func (s simHintingStore) Publish(ctx context.Context, channel string, msg []byte) error {
	return hintingStore{s.faultView}.Publish(ctx, channel, msg)
}

func (s simHintingStore) Subscribe(ctx context.Context, channels []string, deliver func(string, []byte)) error {
	return hintingStore{s.faultView}.Subscribe(ctx, channels, deliver)
}

// simSights is what one process knows of marks: when it last began a read that
// found a key missing.
type simSights struct {
	mu      sync.Mutex // guards missing
	missing map[string]time.Time
}

func (s simStore) Get(ctx context.Context, key string) ([]byte, bool, error) {
	began := time.Now()
	value, found, err := s.faultView.Get(ctx, key)
	if err == nil {
		s.sights.saw(key, found, began)
	}
	return value, found, err
}

func (s simStore) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	began := time.Now()
	values, err := s.faultView.GetMany(ctx, keys)
	if err == nil {
		for i, key := range keys {
			s.sights.saw(key, values[i] != nil, began)
		}
	}
	return values, err
}

func (s simStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	s.writes("Put", key)
	return s.faultView.Put(ctx, key, value, ttl)
}

func (s simStore) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	s.writes("Touch", key)
	return s.faultView.Touch(ctx, key, ttl)
}

func (s simStore) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	s.writes("Put", put)
	return s.faultView.PutDelete(ctx, put, value, ttl, del)
}

func (k *simSights) saw(key string, found bool, began time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !found && began.After(k.missing[key]) {
		k.missing[key] = began
	}
}

func (k *simSights) last(key string) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.missing[key]
}

// simFresh is how old a look may be on which a write of a record rests: the look,
// Check, and one more call of the store come between.
const simFresh = 4*simStoreTimeout + time.Second

// writes checks a write before it goes out: rule 6, only who closes writes marks;
// rules 2 and 3, a record is written and touched only after a look that found no
// mark.
func (s simStore) writes(op, key string) {
	n, sim, sights := s.n, s.n.sim, s.sights
	name := strings.TrimPrefix(key, DefaultKeyPrefix)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	switch {
	case strings.HasPrefix(name, keyClosed):
		if s := sim.byDigest[strings.TrimPrefix(name, keyClosed)]; s == nil || !s.closing {
			sim.violated("rule 6: replica %d writes the close mark of %v, which nobody closed", n.index, s)
		}
	case strings.HasPrefix(name, keyEndpoint):
		if !sim.endpointsClosing[key] {
			sim.violated("rule 6: replica %d writes the close mark of an endpoint that nobody closed", n.index)
		}
	case strings.HasPrefix(name, keySession):
		digest := strings.TrimPrefix(name, keySession)
		s := sim.byDigest[digest]
		if s == nil && op == "Put" {
			return
		}
		seen := sights.last(DefaultKeyPrefix + keyClosed + digest)
		if s != nil && s.opener == n {
			seen = latest(seen, s.opened) // nobody can have closed it before that
		}
		if age := time.Since(seen); seen.IsZero() || age > simFresh {
			sim.violated("rule 3: replica %d writes (%s) the record of %v, but its last good look is %v old", n.index, op, s, age)
		}
	}
}

// simEndpointKey is the key of an endpoint's mark, told by the design and not by
// the code.
func simEndpointKey(e Endpoint) string {
	sum := sha256.Sum256([]byte(e.Name + "\x00" + e.Incarnation))
	return DefaultKeyPrefix + "endpoint." + hex.EncodeToString(sum[:])
}

// A simFault is a way in which a store misbehaves.
type simFault struct {
	name string
	make func(rng *simRand) func(storeCall) fault
	late time.Duration // writes may be applied so long after they failed
}

// simRand is randomness that faults on many goroutines share.
type simRand struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (r *simRand) chance(p float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.Float64() < p
}

func (r *simRand) between(min, max time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min + time.Duration(r.rng.Int64N(int64(max-min)+1))
}

const simLate = 45 * time.Second

// onWrites is a fault that only writes meet.
func onWrites(f func() fault) func(storeCall) fault {
	return func(c storeCall) fault {
		if !c.write() {
			return fault{}
		}
		return f()
	}
}

// simHealthy is a store without faults: even a good one takes its time, so that
// requests meet each other.
func simHealthy(r *simRand) func(storeCall) fault {
	return func(storeCall) fault { return fault{delay: r.between(0, 20*time.Millisecond)} }
}

// simFaults are all faults of a store that the simulation knows.
var simFaults = []simFault{
	{name: "down", make: func(*simRand) func(storeCall) fault {
		return func(storeCall) fault { return fault{err: errStoreDown} }
	}},
	{name: "flaky", make: func(r *simRand) func(storeCall) fault {
		return func(storeCall) fault {
			if r.chance(0.5) {
				return fault{err: errStoreDown}
			}
			return fault{}
		}
	}},
	{name: "slow", make: func(r *simRand) func(storeCall) fault {
		return func(storeCall) fault { return fault{delay: r.between(0, 3*time.Second)} }
	}},
	{name: "silent", make: func(*simRand) func(storeCall) fault {
		return func(storeCall) fault { return fault{delay: time.Hour} }
	}},
	{name: "deaf", late: 5 * time.Second, make: func(*simRand) func(storeCall) fault {
		return func(storeCall) fault { return fault{delay: 5 * time.Second, deaf: true} }
	}},
	{name: "no reads", make: func(*simRand) func(storeCall) fault {
		return func(c storeCall) fault {
			if c.write() {
				return fault{}
			}
			return fault{err: errStoreDown}
		}
	}},
	{name: "no writes", make: func(*simRand) func(storeCall) fault {
		return onWrites(func() fault { return fault{err: errStoreDown} })
	}},
	{name: "lost acknowledgements", make: func(*simRand) func(storeCall) fault {
		return onWrites(func() fault { return fault{err: errStoreDown, apply: applyNow} })
	}},
	{name: "late writes", late: simLate, make: func(r *simRand) func(storeCall) fault {
		return onWrites(func() fault {
			return fault{err: errStoreDown, apply: applyLate, late: r.between(0, simLate)}
		})
	}},
}
