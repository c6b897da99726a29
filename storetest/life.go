package storetest

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sessionshare/sessionshare"
)

// lifeCases: how long a key is there.
var lifeCases = []testCase{{
	name:     "expiry-not-early",
	sentence: "Expiry is never early.",
	waits:    true,
	run: func(e *env) {
		for i, ttl := range []time.Duration{e.short(), e.short() + 501*time.Microsecond} {
			key := e.key(strconv.Itoa(i))
			s := e.put(e.a, key, "value", ttl)
			for found := true; found && time.Now().Before(s.gone); {
				_, found = e.get(e.b, key)
				left := time.Until(s.alive)
				if !found && left > 0 {
					e.failf("the key with a ttl of %v was gone %v too early", ttl, left)
				}
				// Ever closer looks at the end: an early expiry may be early by little.
				time.Sleep(max(100*time.Microsecond, left/20))
			}
		}
	},
}, {
	name:     "expiry-not-late",
	sentence: "An expired key is missing, at once, purged or not. Expiry may be late by the store's precision.",
	waits:    true,
	run: func(e *env) {
		s := e.put(e.a, e.key("k"), "value", e.short())
		sleepUntil(s.gone)
		e.absent("after the ttl and the store's precision", e.key("k"))
		e.must("Delete of an expired key", e.a.Delete(e.ctx(), e.key("k")))
		e.put(e.a, e.key("k"), "again", long)
		e.present("put again after expiry", e.key("k"), "again")
	},
}, {
	name:     "tiny-ttl",
	sentence: "ttl is a positive duration: one too small for the store is rounded up, it makes no key immortal.",
	waits:    true,
	run: func(e *env) {
		s := e.put(e.a, e.key("k"), "value", time.Nanosecond)
		sleepUntil(s.gone)
		e.absent("after a ttl of 1 ns and the store's precision", e.key("k"))
	},
}, {
	name:     "long-ttl",
	sentence: "ttl is a positive duration, also one of months.",
	run: func(e *env) {
		for _, w := range writes(e, e.a) {
			for _, days := range []int{25, 400} { // 2^31 ms are 24.9 days
				key := e.key(strings.ToLower(w.name) + strconv.Itoa(days))
				e.must(w.name, w.do(e.ctx(), key, []byte("value"), time.Duration(days)*24*time.Hour))
				e.present(fmt.Sprintf("put for %d days", days), key, "value")
			}
		}
	},
}, {
	name:     "put-lengthens",
	sentence: "Put replaces the life that the key had, be it longer or shorter.",
	waits:    true,
	run: func(e *env) {
		s := e.put(e.a, e.key("k"), "value", e.short())
		e.put(e.a, e.key("k"), "value", long)
		sleepUntil(s.gone)
		e.present("put with a longer ttl, after the first was over", e.key("k"), "value")
	},
}, {
	name:     "put-shortens",
	sentence: "Put replaces the life that the key had, be it longer or shorter.",
	waits:    true,
	run: func(e *env) {
		e.put(e.a, e.key("k"), "value", long)
		s := e.put(e.a, e.key("k"), "value", e.short())
		sleepUntil(s.gone)
		e.absent("put with a shorter ttl, after that was over", e.key("k"))
	},
}, {
	name:     "ttl-not-positive",
	sentence: "A ttl that is zero or negative is an error and changes nothing.",
	run:      ttlNotPositive,
}}

func ttlNotPositive(e *env) {
	for _, ttl := range []time.Duration{0, -1, -time.Millisecond, -time.Hour} {
		for _, w := range writes(e, e.a) {
			e.absent("before", e.key("missing"))
			if w.do(e.ctx(), e.key("missing"), []byte("value"), ttl) == nil {
				e.failf("%s with a ttl of %v returned no error", w.name, ttl)
			}
			e.absent(w.name+" with a bad ttl", e.key("missing"))
		}
		e.put(e.a, e.key("k"), "value", long)
		if e.a.Put(e.ctx(), e.key("k"), []byte("other"), ttl) == nil {
			e.failf("Put with a ttl of %v returned no error", ttl)
		}
		if s, ok := as[sessionshare.PutDeleter](e.a); ok {
			if s.PutDelete(e.ctx(), e.key("missing"), []byte("mark"), ttl, e.key("k")) == nil {
				e.failf("PutDelete with a ttl of %v returned no error", ttl)
			}
		}
		if s, ok := as[sessionshare.CompareAndSwapper](e.a); ok {
			if swapped, err := s.CompareAndSwap(e.ctx(), e.key("k"), []byte("value"), []byte("new"), ttl); err == nil || swapped {
				e.failf("CompareAndSwap with a ttl of %v returned (%t, %v)", ttl, swapped, err)
			}
		}
		e.present("after writes with a bad ttl", e.key("k"), "value")
	}
}

// raceCases: what several replicas see of each other.
var raceCases = []testCase{{
	name:     "visible-at-once",
	sentence: "What a write that returned nil stored, every read that begins afterwards sees, on every replica.",
	run: func(e *env) {
		rounds(100, func(i int) {
			from, to := e.a, e.b
			if i%2 == 1 {
				from, to = e.b, e.a
			}
			value := "value " + string(rune('a'+i%26))
			e.put(from, e.key("k"), value, long)
			if got, _ := e.get(to, e.key("k")); got != value {
				e.failf("a replica read %s after another had put %s", brief(got), brief(value))
			}
			e.must("Delete", to.Delete(e.ctx(), e.key("k")))
			if _, found := e.get(from, e.key("k")); found {
				e.failf("a replica read a key after another had deleted it")
			}
		})
	},
}, {
	name:     "concurrent-puts",
	sentence: "Operations on one key are linearizable across all replicas: of several Puts one whole value stays.",
	run:      concurrentPuts,
}, {
	name:     "reads-go-forward",
	sentence: "Operations on one key are linearizable across all replicas: no read goes back in time.",
	run:      readsGoForward,
}}

func concurrentPuts(e *env) {
	values := map[string]bool{}
	var puts []func() error
	for i := range 8 {
		s, value := e.a, pattern(4<<10, byte(37*i))
		if i%2 == 1 {
			s = e.b
		}
		values[value] = true
		puts = append(puts, func() error { return s.Put(e.ctx(), e.key("k"), []byte(value), long) })
	}
	rounds(20, func(int) {
		e.together(puts...)
		got, found := e.get(e.a, e.key("k"))
		if !found || !values[got] {
			e.failf("after 8 Puts at once the key holds none of the 8 values (found: %t)", found)
		}
		e.present("two replicas after 8 Puts at once", e.key("k"), got)
	})
}

// readsGoForward has one replica write values that grow, while the other reads.
func readsGoForward(e *env) {
	var done, back atomic.Bool
	write := func() error {
		defer done.Store(true)
		for i := range 60 {
			if err := e.a.Put(e.ctx(), e.key("k"), fmt.Appendf(nil, "step %02d", i), long); err != nil {
				return err
			}
			runtime.Gosched()
		}
		return nil
	}
	read := func() error {
		seen := ""
		for reads := 0; reads < 50 || !done.Load(); reads++ {
			value, _, err := e.b.Get(e.ctx(), e.key("k"))
			if err != nil {
				return err
			}
			if string(value) < seen {
				back.Store(true)
			}
			seen = max(seen, string(value))
			runtime.Gosched()
		}
		return nil
	}
	e.together(write, read, read)
	e.present("after the last Put", e.key("k"), "step 59")
	if back.Load() {
		e.failf("a replica read a value, and then an older one")
	}
}
