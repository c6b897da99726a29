package storetest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sessionshare/sessionshare"
)

func TestMemoryStore(t *testing.T) {
	var backend hang
	m := sessionshare.NewMemoryStore()
	Run(t, func(*testing.T) sessionshare.SharedStore {
		return &hanging{MemoryStore: m, hang: &backend}
	}, Options{Stall: backend.stall})
}

// TestMemoryStoreVirtual runs the same cases in virtual time, as the library's
// own tests use the store.
func TestMemoryStoreVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := sessionshare.NewMemoryStore()
		for _, c := range cases() {
			if r := record(c, m, m, Options{}); r.failed {
				t.Errorf("%s: %s", c.name, r.message)
			}
		}
	})
}

// TestCasesAreNamed: a name is how a broken rule is spoken of.
func TestCasesAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if c.name == "" || c.sentence == "" || seen[c.name] {
			t.Errorf("case %q has no name of its own or no sentence", c.name)
		}
		seen[c.name] = true
	}
}

// hang is a backend that can be stalled: then calls last until their context
// ends or it is resumed.
type hang struct {
	mu sync.Mutex
	on chan struct{} // closed by resume; nil when not stalled
}

func (h *hang) stall() (resume func()) {
	on := make(chan struct{})
	h.mu.Lock()
	h.on = on
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		h.on = nil
		h.mu.Unlock()
		close(on)
	}
}

func (h *hang) wait(ctx context.Context) error {
	h.mu.Lock()
	on := h.on
	h.mu.Unlock()
	if on != nil {
		select {
		case <-on:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// hanging is a store over a backend that can be stalled. The other methods go
// past the stall.
type hanging struct {
	*sessionshare.MemoryStore
	hang *hang
}

func (s *hanging) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := s.hang.wait(ctx); err != nil {
		return nil, false, err
	}
	return s.MemoryStore.Get(ctx, key)
}
