package storetest

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sessionshare/sessionshare"
)

// sweepCases: the ability Sweeper.
var sweepCases = []testCase{{
	name:     "sweep-spares",
	sentence: "Sweep removes no key that is alive.",
	run: func(e *env) {
		s := need[sessionshare.Sweeper](e, e.b)
		e.put(e.a, e.key("k"), "value", long)
		e.put(e.a, e.key("short"), "value", time.Minute)
		e.must("Sweep", s.Sweep(e.ctx()))
		e.must("Sweep again", s.Sweep(e.ctx()))
		e.present("after Sweep", e.key("k"), "value")
		e.present("after Sweep", e.key("short"), "value")
	},
}, {
	name:     "sweep-together",
	sentence: "Several replicas may sweep at once.",
	waits:    true,
	run: func(e *env) {
		a, b := need[sessionshare.Sweeper](e, e.a), need[sessionshare.Sweeper](e, e.b)
		var gone time.Time
		for i := range 100 {
			gone = e.put(e.a, e.key(strconv.Itoa(i)), "value", e.short()).gone
		}
		sleepUntil(gone)
		sweep := func(s sessionshare.Sweeper) func() error { return func() error { return s.Sweep(e.ctx()) } }
		e.together(sweep(a), sweep(b), sweep(a), sweep(b))
	},
}, {
	name:     "sweep-races-put",
	sentence: "Sweep removes no key that is put while it runs.",
	waits:    true,
	run:      sweepRacesPut,
}, {
	name:     "sweep-hides-expired",
	sentence: "An expired key is missing, at once and for every method, purged or not: also while Sweep runs.",
	waits:    true,
	run:      sweepHidesExpired,
}}

// sweepRacesPut puts expired keys again while a sweep runs that has perhaps
// seen them expired.
func sweepRacesPut(e *env) {
	s := need[sessionshare.Sweeper](e, e.b)
	const n = 64
	for range 3 {
		var gone time.Time
		for i := range n {
			gone = e.put(e.a, e.key(strconv.Itoa(i)), "old", time.Nanosecond).gone
		}
		sleepUntil(gone)
		var done atomic.Bool
		sweep := func() error {
			for !done.Load() {
				if err := s.Sweep(e.ctx()); err != nil {
					return err
				}
				runtime.Gosched()
			}
			return nil
		}
		e.together(sweep, func() error {
			defer done.Store(true)
			for i := range n {
				if err := e.a.Put(e.ctx(), e.key(strconv.Itoa(i)), []byte("new"), long); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range n {
			e.present("put again while Sweep ran", e.key(strconv.Itoa(i)), "new")
		}
	}
}

func sweepHidesExpired(e *env) {
	s := need[sessionshare.Sweeper](e, e.b)
	const n = 50
	var gone time.Time
	for i := range n {
		gone = e.put(e.a, e.key(strconv.Itoa(i)), "value", e.short()).gone
	}
	sleepUntil(gone)
	var reading, sweeps atomic.Int32
	reading.Store(2)
	var served atomic.Bool
	sweep := func() error {
		defer sweeps.Store(10) // also if it fails, or the readers wait for ever
		for reading.Load() > 0 {
			if err := s.Sweep(e.ctx()); err != nil {
				return err
			}
			sweeps.Add(1)
		}
		return nil
	}
	read := func() error {
		defer reading.Add(-1)
		for i := 0; i < 5*n || sweeps.Load() < 10; i++ {
			_, found, err := e.a.Get(e.ctx(), e.key(strconv.Itoa(i%n)))
			if err != nil {
				return err
			}
			if found {
				served.Store(true)
			}
		}
		return nil
	}
	e.together(read, sweep, read)
	if served.Load() {
		e.failf("an expired key was served while Sweep ran")
	}
}
