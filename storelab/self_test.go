//go:build unix

package storelab

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// TestLedgerNotices: the fault tests fail on stores that break the rules, so
// that their silence means something.
func TestLedgerNotices(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks broken
		want   string
	}{
		{"an outage that looks like a miss", broken{miss: true}, "lost: "},
		{"close marks that are not kept", broken{forget: true}, "revived: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			memory := sessionshare.NewMemoryStore()
			var away atomic.Bool
			found := observe(t, backend{name: "broken"}, c.name, func() {
				away.Store(true)
				time.Sleep(time.Second)
				away.Store(false)
			}, func() sessionshare.SharedStore {
				b := c.breaks
				b.SharedStore, b.away = memory, &away
				return &b
			})
			if !strings.Contains(strings.Join(found, "\n"), c.want) {
				t.Errorf("found %q, want one that begins with %q", found, c.want)
			}
		})
	}
}

// broken is a store that can be away, and breaks one rule.
type broken struct {
	sessionshare.SharedStore
	away         *atomic.Bool
	miss, forget bool
}

var errAway = errors.New("away")

func (b *broken) Get(ctx context.Context, key string) ([]byte, bool, error) {
	switch {
	case b.away.Load() && b.miss:
		return nil, false, nil
	case b.away.Load():
		return nil, false, errAway
	}
	return b.SharedStore.Get(ctx, key)
}

func (b *broken) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	switch {
	case b.away.Load():
		return errAway
	case b.forget && strings.Contains(key, ".closed."):
		return nil
	}
	return b.SharedStore.Put(ctx, key, value, ttl)
}

func (b *broken) Delete(ctx context.Context, key string) error {
	switch {
	case b.away.Load():
		return errAway
	case b.forget && strings.Contains(key, ".session."):
		return nil
	}
	return b.SharedStore.Delete(ctx, key)
}

// CompareAndSwap is there for the tool; no rule is broken here.
func (b *broken) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if b.away.Load() {
		return false, errAway
	}
	return b.SharedStore.(sessionshare.CompareAndSwapper).CompareAndSwap(ctx, key, old, new, ttl)
}
