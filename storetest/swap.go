package storetest

import (
	"strconv"
	"sync/atomic"

	"github.com/sessionshare/sessionshare"
)

// swapCases: the ability CompareAndSwapper.
var swapCases = []testCase{{
	name:     "swap",
	sentence: "CompareAndSwap stores new under key for ttl if the value of key is old, and reports whether it did.",
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		e.put(e.b, e.key("k"), "old", long)
		e.swap(s, "old", "new", true)
		e.present("after CompareAndSwap", e.key("k"), "new")
		for _, old := range []string{"old", "ne", "new\x00", "NEW", "new "} {
			e.swap(s, old, "other", false)
			e.present("after CompareAndSwap with another old value", e.key("k"), "new")
		}
	},
}, {
	name:     "swap-absent",
	sentence: "A nil old means that key must be missing.",
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		e.swap(s, "", "first", true)
		e.present("after CompareAndSwap of a missing key", e.key("k"), "first")
		e.swap(s, "", "second", false)
		e.present("after CompareAndSwap of a present key with a nil old", e.key("k"), "first")
	},
}, {
	name:     "swap-missing",
	sentence: "CompareAndSwap stores new if the value of key is old: a missing key has no value.",
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		e.swap(s, "old", "new", false)
		e.absent("after CompareAndSwap of a missing key with an old value", e.key("k"))
		e.put(e.a, e.key("k"), "old", long)
		e.must("Delete", e.a.Delete(e.ctx(), e.key("k")))
		e.swap(s, "old", "new", false)
		e.absent("after CompareAndSwap of a deleted key with an old value", e.key("k"))
	},
}, {
	name:     "swap-bytes",
	sentence: "Values are any bytes, also in CompareAndSwap.",
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		last := pattern(sessionshare.MaxValueBytes, 1)
		e.swap(s, "", last, true)
		values := awkwardValues()
		values["the largest size"] = pattern(sessionshare.MaxValueBytes, 2)
		for name, value := range values {
			e.swap(s, last, value, true)
			e.present("swapped in, "+name, e.key("k"), value)
			last = value
		}
	},
}, {
	name:     "swap-life",
	sentence: "CompareAndSwap stores new under key for ttl.",
	waits:    true,
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		swapped := func(name, old string, ttl bool) bool {
			var was []byte
			if old != "" {
				was = []byte(old)
			}
			life := long
			if !ttl {
				life = e.short()
			}
			swapped, err := s.CompareAndSwap(e.ctx(), e.key(name), was, []byte("new"), life)
			e.must("CompareAndSwap", err)
			return swapped
		}
		check := func(swapped bool) {
			if !swapped {
				e.failf("CompareAndSwap reported swapped = false, want true")
			}
		}
		_, found := e.putThen(e.key("longer"), e.short(), func() bool { return swapped("longer", "value", true) })
		check(found)
		e.put(e.a, e.key("shorter"), "old", long)
		gone := e.lasting(e.short(), func() {
			check(swapped("shorter", "old", false))
			check(swapped("created", "", false))
		}).gone
		sleepUntil(gone)
		e.absent("swapped, after its ttl", e.key("shorter"))
		e.absent("created by CompareAndSwap, after its ttl", e.key("created"))
		e.present("swapped with a longer ttl, after the first was over", e.key("longer"), "new")
	},
}, {
	name:     "swap-loser-life",
	sentence: "If CompareAndSwap reports false, neither the value nor the life of key has changed.",
	waits:    true,
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		e.put(e.a, e.key("long"), "value", long)
		gone := e.put(e.a, e.key("short"), "value", e.short()).gone
		for _, old := range [][]byte{nil, []byte("other")} {
			for _, name := range []string{"long", "short"} {
				ttl := long
				if name == "long" {
					ttl = e.short()
				}
				if swapped, err := s.CompareAndSwap(e.ctx(), e.key(name), old, []byte("new"), ttl); swapped || err != nil {
					// The short key may have expired meanwhile, and a nil old won.
					if name == "short" && old == nil && err == nil {
						e.Skipf("the machine is too slow")
					}
					e.failf("a losing CompareAndSwap returned (%t, %v)", swapped, err)
				}
			}
		}
		sleepUntil(gone)
		e.absent("a key whose life a loser must not have extended", e.key("short"))
		e.present("a key whose life a loser must not have shortened", e.key("long"), "value")
	},
}, {
	name:     "swap-expired",
	sentence: "An expired key is missing, for every method: a nil old wins, its last value does not.",
	waits:    true,
	run: func(e *env) {
		s := need[sessionshare.CompareAndSwapper](e, e.a)
		gone := e.put(e.b, e.key("k"), "value", e.short()).gone
		sleepUntil(gone)
		e.swap(s, "value", "new", false)
		e.swap(s, "", "new", true)
		e.present("after CompareAndSwap of an expired key with a nil old", e.key("k"), "new")
	},
}, {
	name:     "swap-one-wins",
	sentence: "CompareAndSwap replaces a value only if nobody else changed it meanwhile.",
	run:      swapOneWins,
}, {
	name:     "swap-counts",
	sentence: "CompareAndSwap replaces a value only if nobody else changed it meanwhile: no update is lost.",
	run:      swapCounts,
}}

// swap does a CompareAndSwap on key k; an empty old is nil.
func (e *env) swap(s sessionshare.CompareAndSwapper, old, new string, want bool) {
	e.Helper()
	var was []byte
	if old != "" {
		was = []byte(old)
	}
	swapped, err := s.CompareAndSwap(e.ctx(), e.key("k"), was, []byte(new), long)
	e.must("CompareAndSwap", err)
	if swapped != want {
		e.failf("CompareAndSwap from %s reported swapped = %t, want %t", brief(old), swapped, want)
	}
}

// swapOneWins has 16 callers on two replicas swap from one value, and from none.
func swapOneWins(e *env) {
	stores := []sessionshare.CompareAndSwapper{
		need[sessionshare.CompareAndSwapper](e, e.a), need[sessionshare.CompareAndSwapper](e, e.b),
	}
	rounds(40, func(round int) {
		key := e.key(strconv.Itoa(round))
		var old []byte
		if round%2 == 0 {
			old = []byte("old")
			e.put(e.a, key, "old", long)
		}
		var wins atomic.Int32
		var winner atomic.Value
		var callers []func() error
		for i := range 16 {
			callers = append(callers, func() error {
				value := "new " + strconv.Itoa(i)
				swapped, err := stores[i%2].CompareAndSwap(e.ctx(), key, old, []byte(value), long)
				if swapped {
					wins.Add(1)
					winner.Store(value)
				}
				return err
			})
		}
		e.together(callers...)
		if n := wins.Load(); n != 1 {
			e.failf("%d of 16 callers won, want 1", n)
		}
		e.present("after 16 callers swapped at once", key, winner.Load().(string))
	})
}

// swapCounts has 4 callers count one number up, each trying until it wins.
func swapCounts(e *env) {
	stores := []sessionshare.CompareAndSwapper{
		need[sessionshare.CompareAndSwapper](e, e.a), need[sessionshare.CompareAndSwapper](e, e.b),
	}
	readers := []sessionshare.SharedStore{e.a, e.b}
	const callers, each = 4, 10
	e.put(e.a, e.key("k"), "0", long)
	var count []func() error
	for i := range callers {
		count = append(count, func() error {
			for won := 0; won < each; {
				old, _, err := readers[i%2].Get(e.ctx(), e.key("k"))
				if err != nil {
					return err
				}
				n, _ := strconv.Atoi(string(old))
				swapped, err := stores[i%2].CompareAndSwap(e.ctx(), e.key("k"), old, []byte(strconv.Itoa(n+1)), long)
				if err != nil {
					return err
				}
				if swapped {
					won++
				}
			}
			return nil
		})
	}
	e.together(count...)
	e.present("counted up by 4 callers, 10 times each", e.key("k"), strconv.Itoa(callers*each))
}
