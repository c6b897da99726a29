package sessionshare

import "testing"

// benchCPU reports the CPU time of what follows, of all goroutines and of the
// garbage collector: on a machine that does other things too it says more than
// the time that has passed. Call what it returns at the end.
func benchCPU(b *testing.B) (report func()) {
	b.ReportAllocs()
	b.ResetTimer()
	began := processCPU()
	return func() {
		if used := processCPU() - began; used > 0 {
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
		}
	}
}
