package storetest

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sessionshare/sessionshare"
)

// touchCases: the ability Toucher.
var touchCases = []testCase{{
	name:     "touch-extends",
	sentence: "Touch sets the life of key to ttl from now if key is there, and reports whether it was.",
	waits:    true,
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		s, found := e.putThen(e.key("k"), e.short(), func() bool { return e.touched(t, e.key("k"), long) })
		e.touchFound(found, true)
		sleepUntil(s.gone)
		e.present("touched for an hour, after its first life was over", e.key("k"), "value")
	},
}, {
	name:     "touch-expires",
	sentence: "Touch sets the life of key to ttl from now: not for ever.",
	waits:    true,
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		var s span
		ttl := e.short() + 2*time.Millisecond
		_, found := e.putThen(e.key("k"), e.short()+time.Millisecond, func() (found bool) {
			s = e.lasting(ttl, func() { found = e.touched(t, e.key("k"), ttl) })
			return found
		})
		e.touchFound(found, true)
		sleepUntil(s.gone)
		e.absent("touched, after that life was over", e.key("k"))
	},
}, {
	name:     "touch-never-ends",
	sentence: "If more than ttl is left, the life may stay as it is; the key lives for ttl in any case.",
	waits:    true,
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		e.put(e.a, e.key("k"), "value", long)
		s := e.lasting(e.short(), func() { e.touch(t, e.key("k"), e.short(), true) })
		for {
			_, found := e.get(e.a, e.key("k"))
			early := time.Until(s.alive)
			if early <= 0 {
				return
			}
			if !found {
				e.failf("a key with an hour left, touched for %v, was gone %v before that was over", e.short(), early)
			}
			time.Sleep(e.short() / 50)
		}
	},
}, {
	name:     "touch-missing",
	sentence: "Touch never creates a key.",
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		e.touch(t, e.key("never-put"), long, false)
		e.absent("touched, but never put", e.key("never-put"))
	},
}, {
	name:     "touch-deleted",
	sentence: "Touch never revives a key that was deleted.",
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		e.put(e.a, e.key("k"), "value", long)
		e.touch(t, e.key("k"), long, true)
		e.must("Delete", e.a.Delete(e.ctx(), e.key("k")))
		e.touch(t, e.key("k"), long, false)
		e.absent("touched after Delete", e.key("k"))
	},
}, {
	name:     "touch-expired",
	sentence: "Touch never revives a key that has expired.",
	waits:    true,
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		// Nobody reads the key before it is touched: stores notice expiry in reads.
		s := e.put(e.a, e.key("k"), "value", e.short())
		sleepUntil(s.gone)
		e.touch(t, e.key("k"), long, false)
		e.absent("touched after it had expired", e.key("k"))
	},
}, {
	name:     "touch-keeps-value",
	sentence: "Touch never changes a value.",
	run:      touchKeepsValue,
}, {
	name:     "touch-ttl-not-positive",
	sentence: "A ttl that is zero or negative is an error and changes nothing.",
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		e.put(e.a, e.key("k"), "value", long)
		for _, ttl := range []time.Duration{0, -1, -time.Hour} {
			if _, err := t.Touch(e.ctx(), e.key("k"), ttl); err == nil {
				e.failf("Touch with a ttl of %v returned no error", ttl)
			}
			e.present("touched with a bad ttl", e.key("k"), "value")
		}
	},
}, {
	name:     "touch-tiny-ttl",
	sentence: "Touch sets the life of key to ttl from now: a ttl too small for the store is rounded up.",
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		e.put(e.a, e.key("k"), "value", long)
		e.touch(t, e.key("k"), time.Nanosecond, true)
	},
}, {
	name:     "touch-races-delete",
	sentence: "Touch racing a Delete never leaves the key behind.",
	run: func(e *env) {
		t := need[sessionshare.Toucher](e, e.b)
		rounds(100, func(i int) {
			key := e.key(strconv.Itoa(i))
			touch := func() error {
				_, err := t.Touch(e.ctx(), key, long)
				return err
			}
			e.put(e.a, key, "value", long)
			e.together(touch, touch, func() error { return e.a.Delete(e.ctx(), key) }, touch, touch)
			e.absent("after Delete and Touch at once", key)
		})
	},
}, {
	name:     "touch-races-expiry",
	sentence: "Touch never revives a key that has expired: if it reports false, the key stays missing.",
	waits:    true,
	run:      touchRacesExpiry,
}}

func (e *env) touch(t sessionshare.Toucher, key string, ttl time.Duration, want bool) {
	e.Helper()
	e.touchFound(e.touched(t, key, ttl), want)
}

func (e *env) touched(t sessionshare.Toucher, key string, ttl time.Duration) (found bool) {
	e.Helper()
	found, err := t.Touch(e.ctx(), key, ttl)
	e.must("Touch", err)
	return found
}

func (e *env) touchFound(found, want bool) {
	e.Helper()
	if found != want {
		e.failf("Touch reported found = %t, want %t", found, want)
	}
}

// touchKeepsValue touches all the time while another replica puts: a Touch made
// of a read and a write would put an old value back.
func touchKeepsValue(e *env) {
	t := need[sessionshare.Toucher](e, e.b)
	e.put(e.a, e.key("still"), pattern(1000, 7), long)
	e.touch(t, e.key("still"), long, true)
	e.present("after Touch", e.key("still"), pattern(1000, 7))

	e.put(e.a, e.key("k"), "0", long)
	var done, undone atomic.Bool
	touch := func() error {
		for !done.Load() {
			if _, err := t.Touch(e.ctx(), e.key("k"), long); err != nil {
				return err
			}
			runtime.Gosched()
		}
		return nil
	}
	e.together(touch, touch, func() (err error) {
		defer done.Store(true)
		rounds(300, func(i int) {
			value := strconv.Itoa(i)
			if err == nil {
				err = e.a.Put(e.ctx(), e.key("k"), []byte(value), long)
			}
			for range 4 {
				runtime.Gosched()
				if got, _, _ := e.a.Get(e.ctx(), e.key("k")); string(got) != value {
					undone.Store(true)
				}
			}
		})
		return err
	})
	if undone.Load() {
		e.failf("a Touch beside a Put put the old value back")
	}
}

// touchRacesExpiry touches keys in the moments around their end. Either is
// right, but the answer must be what the key does from then on.
func touchRacesExpiry(e *env) {
	t := need[sessionshare.Toucher](e, e.b)
	const n = 64
	s := e.put(e.a, e.key("first"), "value", e.short())
	for i := range n {
		e.put(e.a, e.key(strconv.Itoa(i)), "value", e.short()+time.Duration(i-n/2)*200*time.Microsecond)
	}
	sleepUntil(s.alive)
	found := map[string]bool{}
	for i := range n {
		key := e.key(strconv.Itoa(i))
		ok, err := t.Touch(e.ctx(), key, long)
		e.must("Touch", err)
		found[key] = ok
	}
	for key, ok := range found {
		if ok {
			e.present("Touch said that it is there", key, "value")
		} else {
			e.absent("Touch said that it is missing", key)
		}
	}
}
