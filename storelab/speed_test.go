//go:build unix

package storelab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

const (
	speedKeys  = 200
	speedValue = 512 // bytes
	manyCalls  = 16  // goroutines
	farAway    = 25 * time.Millisecond
)

// A speedFigure is one cell of the tables in docs/STORES.md: one operation on one
// store.
type speedFigure struct {
	store, op  string
	goroutines int // of the store's operations: 1 or manyCalls
	p50, p99   time.Duration
}

// A tripFigure is how many round trips follow one another in an operation.
type tripFigure struct {
	store, op string
	trips     int
}

var (
	speedFigures []speedFigure
	tripFigures  []tripFigure
)

// An operation is one call of a store as the library makes it.
type operation struct {
	name string
	call func(ctx context.Context, s sessionshare.SharedStore, n int) error
}

var operations = []operation{
	{"Put", func(ctx context.Context, s sessionshare.SharedStore, n int) error {
		return s.Put(ctx, fmt.Sprint("session.", n), make([]byte, speedValue), time.Hour)
	}},
	{"Get", func(ctx context.Context, s sessionshare.SharedStore, n int) error {
		_, _, err := s.Get(ctx, fmt.Sprint("session.", n))
		return err
	}},
	{"record and marks", func(ctx context.Context, s sessionshare.SharedStore, n int) error {
		keys := []string{fmt.Sprint("session.", n), fmt.Sprint("closed.", n), "endpoint.x"}
		if b, ok := s.(sessionshare.BatchGetter); ok {
			_, err := b.GetMany(ctx, keys)
			return err
		}
		// Without that ability the library reads one after another.
		for _, key := range keys {
			if _, _, err := s.Get(ctx, key); err != nil {
				return err
			}
		}
		return nil
	}},
	{"Touch", func(ctx context.Context, s sessionshare.SharedStore, n int) error {
		found, err := s.(sessionshare.Toucher).Touch(ctx, fmt.Sprint("session.", n), time.Hour)
		if err == nil && !found {
			err = fmt.Errorf("touch of a key that is there did not find it")
		}
		return err
	}},
}

// stores are all that are compared; memory shows what the library itself costs.
func speedStores() []backend {
	memory := backend{name: "memory",
		start: func(testing.TB) (storeServer, string) { return nil, "" },
		open:  func(testing.TB, string) sessionshare.SharedStore { return sessionshare.NewMemoryStore() },
	}
	return append([]backend{memory, sqlite}, networked...)
}

// TestSpeed measures all stores, one after another, in one run.
func TestSpeed(t *testing.T) {
	for _, b := range speedStores() {
		t.Run(b.name, func(t *testing.T) {
			_, addr := b.start(t)
			s := b.open(t, addr)
			for n := range speedKeys {
				if err := operations[0].call(t.Context(), s, n); err != nil {
					t.Fatal(err)
				}
			}
			for _, op := range operations {
				for _, goroutines := range []int{1, manyCalls} {
					took := measure(t, s, op, goroutines)
					f := speedFigure{b.name, op.name, goroutines, quantile(took, 0.5), quantile(took, 0.99)}
					t.Logf("%-17s %2d goroutines: p50 %v, p99 %v, %d calls", op.name, goroutines, f.p50, f.p99, len(took))
					speedFigures = append(speedFigures, f)
				}
			}
			library(t, b, addr)
		})
	}
}

// measure calls an operation for a while from several goroutines and returns how
// long each call took, sorted.
func measure(t *testing.T, s sessionshare.SharedStore, op operation, goroutines int) []time.Duration {
	t.Helper()
	lasts, warm := 20*time.Millisecond, 10*time.Millisecond
	if *write {
		lasts, warm = 1500*time.Millisecond, 300*time.Millisecond
	}
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	began := time.Now()
	for range goroutines {
		wg.Go(func() {
			var took []time.Duration
			for time.Since(began) < warm+lasts {
				// As the library calls it: with a deadline.
				ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
				start := time.Now()
				err := op.call(ctx, s, rand.N(speedKeys))
				end := time.Now()
				cancel()
				if err != nil {
					t.Errorf("%s: %v", op.name, err)
					return
				}
				if start.Sub(began) >= warm || len(took) == 0 {
					took = append(took, end.Sub(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
