package sessionshare

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// benchAnswer stands for the SDK where only the library is to be measured: it
// reads the body and answers as the SDK does.
type benchAnswer struct{}

var (
	benchSSE     = []string{"text/event-stream"}
	benchBuffers = sync.Pool{New: func() any { return new([512]byte) }}
	benchEvent   = []byte("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n")
)

func (benchAnswer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	buf := benchBuffers.Get().(*[512]byte)
	defer benchBuffers.Put(buf)
	for {
		if _, err := req.Body.Read(buf[:]); err != nil {
			break
		}
	}
	w.Header()["Content-Type"] = benchSSE
	_, _ = w.Write(benchEvent)
}

// newBenchAdmission returns a gateway with n sessions whose SDK handlers are
// replaced.
func newBenchAdmission(b *testing.B, n int) (*benchHost, []string) {
	h := newBenchHost(b, NewMemoryStore(), 0)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = benchOpen(b, h)
		c, _ := h.replica.lookup(ids[i])
		c.sdk = benchAnswer{}
	}
	return h, ids
}

// BenchmarkAdmission is all that the library does for a call of a hosted session,
// from ServeHTTP to its return, without the SDK. bare is what the benchmark
// itself costs.
func BenchmarkAdmission(b *testing.B) {
	run := func(b *testing.B, h http.Handler, id string) {
		q := newBenchRequest(id, benchCall)
		defer benchCPU(b)()
		for b.Loop() {
			q.send(h)
		}
	}
	b.Run("bare", func(b *testing.B) { run(b, benchAnswer{}, "") })
	b.Run("shared", func(b *testing.B) {
		h, ids := newBenchAdmission(b, 1)
		run(b, h, ids[0])
	})
}

// BenchmarkAdmissionParallel is BenchmarkAdmission on many sessions from many
// goroutines: with twice the cores it takes half the time, for sessions share no
// lock. Run it with -cpu 1,2,4.
func BenchmarkAdmissionParallel(b *testing.B) {
	run := func(b *testing.B, h http.Handler, ids []string) {
		var next atomic.Int64
		defer benchCPU(b)()
		b.RunParallel(func(pb *testing.PB) {
			q := newBenchRequest(ids[int(next.Add(1))%len(ids)], benchCall)
			for pb.Next() {
				q.send(h)
			}
		})
	}
	b.Run("bare", func(b *testing.B) { run(b, benchAnswer{}, []string{"none"}) })
	b.Run("shared", func(b *testing.B) {
		h, ids := newBenchAdmission(b, 256)
		run(b, h, ids)
	})
}

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

// BenchmarkCopyBytes is what one hosted session costs in memory, the store
// excluded. It measures once, whatever b.N is.
func BenchmarkCopyBytes(b *testing.B) {
	const sessions = 10_000
	measure := func(b *testing.B, open func(i int), keep ...any) {
		heap, stack := benchMemory()
		for i := range sessions {
			open(i)
		}
		heap2, stack2 := benchMemory()
		runtime.KeepAlive(keep)
		b.ReportMetric((heap2-heap)/sessions, "heap-B/session")
		b.ReportMetric((stack2-stack)/sessions, "stack-B/session")
		b.ReportMetric((heap2-heap+stack2-stack)/sessions, "B/session")
	}
	b.Run("bare", func(b *testing.B) {
		h := newBenchHost(b, nil, 0)
		measure(b, func(int) {
			if !newBenchRequest(benchOpen(b, h), benchPing).send(h) {
				b.Fatal("not served")
			}
		}, h)
	})
	b.Run("shared", func(b *testing.B) {
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
