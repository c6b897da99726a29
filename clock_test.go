package sessionshare

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// clockBase has a monotonic reading, which time.Now in virtual time has not.
var clockBase = time.Now()

// A clock is what one replica takes for the time: it goes with virtual time, and
// its wall and its monotonic reading can jump apart, as when a machine was
// suspended.
type clock struct {
	start      time.Time
	mono, wall atomic.Int64 // jumps so far
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() time.Time {
	mono := time.Duration(c.mono.Load())
	t := clockBase.Add(time.Since(c.start) + mono)
	return shiftWall(t, time.Duration(c.wall.Load())-mono)
}

// suspend is a machine that slept: wall time has passed, monotonic time has not.
func (c *clock) suspend(d time.Duration) { c.wall.Add(int64(d)) }

// stall is a process that stood still while somebody set the wall clock back:
// monotonic time has passed, wall time has not.
func (c *clock) stall(d time.Duration) { c.mono.Add(int64(d)) }

// shiftWall moves the wall reading of t by whole seconds and leaves its monotonic
// reading alone. Package time has no way to say that.
func shiftWall(t time.Time, d time.Duration) time.Time {
	p := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	p.wall += uint64(int64(d/time.Second) << 30)
	return t
}
