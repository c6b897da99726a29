package sessionshare

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCost is what the library adds to a plain call of a hosted session, in
// per cent of what the call costs on the bare SDK. Both gateways live in one
// process, with one heap, and take turns every few milliseconds, so that what else
// the machine does, its clock and the garbage of the one weigh on both; what
// counts is the median over all turns. direct calls ServeHTTP with a writer that
// costs nothing; tcp is what a client feels, over a kept-alive connection on
// loopback.
func BenchmarkCost(b *testing.B) {
	for _, c := range []struct {
		name, body string
		calls      int // a turn
	}{
		{"call", benchCall, 50},
		{"1MiB-string", benchCallWith(benchString(1 << 20)), 1},
		{"1MiB-array", benchCallWith(benchArray(1 << 20)), 1},
	} {
		b.Run(c.name+"/direct", func(b *testing.B) {
			benchTurns(b, c.calls, func(h *benchHost) func() {
				q := newBenchRequest(benchOpen(b, h), c.body)
				return func() {
					if !q.send(h) {
						b.Fatalf("status %d", q.w.status)
					}
				}
			})
		})
		b.Run(c.name+"/tcp", func(b *testing.B) {
			benchTurns(b, c.calls, func(h *benchHost) func() { return benchTCP(b, h, c.body) })
		})
	}
}

// benchTurns measures the calls that caller makes on both gateways. One iteration
// is one turn of each.
func benchTurns(b *testing.B, calls int, caller func(h *benchHost) func()) {
	ballast := make([]byte, 64<<20) // as a gateway has: with a heap of 1 MB the collector would run every 20 calls
	defer runtime.KeepAlive(ballast)
	bare, shared := caller(newBenchHost(b, nil, 0)), caller(newBenchHost(b, NewMemoryStore(), 0))
	turn := func(call func()) float64 {
		began := time.Now()
		for range calls {
			call()
		}
		return float64(time.Since(began).Nanoseconds()) / float64(calls)
	}
	var bares, shareds, ratios []float64
	for b.Loop() {
		var x, y float64
		if len(ratios)%2 == 0 {
			x, y = turn(bare), turn(shared)
		} else {
			y, x = turn(shared), turn(bare)
		}
		bares, shareds, ratios = append(bares, x), append(shareds, y), append(ratios, y/x)
	}
	median := func(x []float64) float64 {
		slices.Sort(x)
		return x[len(x)/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(bares), "bare-ns/call")
	b.ReportMetric(median(shareds), "shared-ns/call")
	b.ReportMetric(100*(median(ratios)-1), "%-more")
}

// benchTCP serves h on loopback and returns what makes one call there.
func benchTCP(b *testing.B, h *benchHost, body string) func() {
	web := httptest.NewServer(h)
	b.Cleanup(web.Close)
	id := benchOpen(b, h)
	client := web.Client()
	return func() {
		req, err := http.NewRequest(http.MethodPost, web.URL+"/mcp", strings.NewReader(body))
		require.NoError(b, err)
		req.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, headerSessionID: {id},
		}
		res, err := client.Do(req)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(b, err)
		require.NoError(b, res.Body.Close())
		if res.StatusCode != http.StatusOK {
			b.Fatalf("status %d", res.StatusCode)
		}
	}
}

func benchCallWith(arg string) string { return strings.Replace(benchCall, `"hello"`, arg, 1) }

// benchString and benchArray are arguments of n bytes: one long string, and many
// small values, which cost the scanner most.
func benchString(n int) string { return `"` + strings.Repeat("x", n) + `"` }
func benchArray(n int) string  { return "[" + strings.Repeat(`{"k":1},`, n/8) + "0]" }
