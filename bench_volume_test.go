package sessionshare

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These benchmarks leave much in memory, such as the sessions of the bare SDK,
// which would slow down others by the collector. The name of this file makes them
// the last ones of a run.

// benchMemory returns the bytes that are in use: heap and stacks.
func benchMemory() (heap, stack float64) {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
		time.Sleep(20 * time.Millisecond) // finalizers and cleanups
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(m.StackInuse)
}

// benchCopyBytes is what BenchmarkCopyBytes has measured: heap and stack.
var benchCopyBytes = map[string][2]float64{}

// BenchmarkCopyBytes is what one hosted session costs in memory, the store
// excluded. It measures once, whatever b.N and -count are, for it takes long.
func BenchmarkCopyBytes(b *testing.B) {
	const sessions = 10_000
	report := func(b *testing.B) {
		used := benchCopyBytes[b.Name()]
		b.ReportMetric(used[0]/sessions, "heap-B/session")
		b.ReportMetric(used[1]/sessions, "stack-B/session")
		b.ReportMetric((used[0]+used[1])/sessions, "B/session")
	}
	measure := func(b *testing.B, open func(i int), keep ...any) {
		heap, stack := benchMemory()
		for i := range sessions {
			open(i)
		}
		heap2, stack2 := benchMemory()
		runtime.KeepAlive(keep)
		benchCopyBytes[b.Name()] = [2]float64{heap2 - heap, stack2 - stack}
	}
	b.Run("bare", func(b *testing.B) {
		defer report(b)
		if _, done := benchCopyBytes[b.Name()]; done {
			return
		}
		h := newBenchHost(b, nil, 0)
		measure(b, func(int) {
			if !newBenchRequest(benchOpen(b, h), benchPing).send(h) {
				b.Fatal("not served")
			}
		}, h)
	})
	b.Run("shared", func(b *testing.B) {
		defer report(b)
		if _, done := benchCopyBytes[b.Name()]; done {
			return
		}
		// The sessions are opened elsewhere, so that the store is there before.
		store := NewMemoryStore()
		opener := newBenchHost(b, store, 0)
		ids := make([]string, sessions)
		for i := range ids {
			ids[i] = benchOpen(b, opener)
		}
		h := newBenchHost(b, store, 0)
		measure(b, func(i int) {
			if !newBenchRequest(ids[i], benchPing).send(h) {
				b.Fatal("not resumed")
			}
		}, h)
	})
}

// BenchmarkMillion has one million sessions in the store, of which this replica
// hosts a thousand: what a call costs, and one tick of the sweeper, which comes
// once a second.
func BenchmarkMillion(b *testing.B) {
	const stored, hosted = 1_000_000, 1_000
	store := NewMemoryStore()
	h := newBenchHost(b, store, 0)
	for range hosted {
		benchOpen(b, h)
	}
	before, _ := benchMemory()
	fillBenchStore(b, h.replica, store, stored-hosted)
	after, _ := benchMemory()
	used := (after - before) / (stored - hosted)
	b.Run("call/shared", func(b *testing.B) { benchSend(b, h, benchCall) })
	b.Run("sweep/shared", func(b *testing.B) {
		defer benchCPU(b)()
		for b.Loop() {
			h.replica.sweepCopies()
			h.replica.closures.retry()
		}
		b.ReportMetric(used, "B/stored")
	})
}

// fillBenchStore stores the records of n more sessions.
func fillBenchStore(b *testing.B, r *Replica, store SharedStore, n int) {
	var rec *record
	r.hosted(func(c *hostedCopy) bool { rec = c.rec; return false })
	value, err := rec.encode()
	require.NoError(b, err)
	for i := range n {
		key := r.keys.session(digestOf(fmt.Sprint("session-", i)))
		require.NoError(b, store.Put(b.Context(), key, value, time.Hour))
	}
}
