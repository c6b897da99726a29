package sessionshare

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
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

// BenchmarkAdmit is the decision alone: whether a request of a hosted session may
// use its copy, from the binding to the look that may be due, and giving the use
// back.
func BenchmarkAdmit(b *testing.B) {
	h, ids := newBenchAdmission(b, 1)
	req := newBenchRequest(ids[0], benchCall).with()
	b.ReportAllocs()
	for b.Loop() {
		c, err := h.replica.use(req, ids[0], "alice", Endpoint{"/mcp", "1"})
		if c == nil || err != nil {
			b.Fatal(err)
		}
		c.leave()
	}
}
