package sqlitestore

import (
	"testing"
	"time"
)

// Rule: expiry is never early. The clock is cut to a whole ms, so a ttl is
// rounded up and gets one more.
func TestMS(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{
		1: 2, time.Millisecond: 2, time.Millisecond + 1: 3, time.Second: 1001, 1<<63 - 1: 9223372036856,
	} {
		if got := ms(ttl); got != want {
			t.Errorf("ms(%v) = %d, want %d", ttl, got, want)
		}
	}
}
