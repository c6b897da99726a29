package storetest

import (
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sessionshare/sessionshare"
)

// batchCases: the abilities BatchGetter and PutDeleter.
var batchCases = []testCase{{
	name:     "getmany-order",
	sentence: "GetMany returns the values of keys, in their order; nil for a missing key.",
	run: func(e *env) {
		s := need[sessionshare.BatchGetter](e, e.b)
		for _, k := range []string{"b", "c", "a"} {
			e.put(e.a, e.key(k), "value of "+k, long)
		}
		e.getMany(s, []string{"c", "none", "a", "c", "b", "none", "c"})
	},
}, {
	name:     "getmany-sizes",
	sentence: "GetMany is called with 1 to 128 keys.",
	run: func(e *env) {
		s := need[sessionshare.BatchGetter](e, e.b)
		var names []string
		for i := range 128 {
			names = append(names, strconv.Itoa(i))
			if i%3 != 0 {
				e.put(e.a, e.key(names[i]), "value of "+names[i], long)
			}
		}
		e.getMany(s, names)
		e.getMany(s, names[:1])
		e.getMany(s, names[1:2])
	},
}, {
	name:     "getmany-bytes",
	sentence: "Values are any bytes, also in GetMany.",
	run: func(e *env) {
		s := need[sessionshare.BatchGetter](e, e.b)
		big := pattern(sessionshare.MaxValueBytes, 25)
		e.put(e.a, e.key("big"), big, long)
		for name, value := range awkwardValues() {
			key := e.key(strings.ToLower(strings.ReplaceAll(name, " ", "-")))
			e.put(e.a, key, value, long)
			got, err := s.GetMany(e.ctx(), []string{e.key("big"), key})
			e.must("GetMany", err)
			if len(got) != 2 || string(got[0]) != big || string(got[1]) != value {
				e.failf("GetMany returned other bytes than were put (a value of %s)", name)
			}
		}
	},
}, {
	name:     "getmany-expired",
	sentence: "An expired key is missing, at once and for every method.",
	waits:    true,
	run: func(e *env) {
		s := need[sessionshare.BatchGetter](e, e.b)
		gone := e.put(e.a, e.key("k"), "value", e.short()).gone
		sleepUntil(gone)
		got, err := s.GetMany(e.ctx(), []string{e.key("k"), e.key("k")})
		e.must("GetMany", err)
		if len(got) != 2 || got[0] != nil || got[1] != nil {
			e.failf("GetMany returned an expired key")
		}
	},
}, {
	name:     "getmany-one-moment",
	sentence: "GetMany returns the values as of one moment.",
	run:      getManyOneMoment,
}, {
	name:     "putdelete",
	sentence: "PutDelete is Put(put, value, ttl) followed by Delete(del).",
	run: func(e *env) {
		s := need[sessionshare.PutDeleter](e, e.a)
		e.put(e.a, e.key("record"), "record", long)
		e.must("PutDelete", s.PutDelete(e.ctx(), e.key("mark"), []byte("1"), long, e.key("record")))
		e.present("put by PutDelete", e.key("mark"), "1")
		e.absent("deleted by PutDelete", e.key("record"))
		e.must("PutDelete of a missing key", s.PutDelete(e.ctx(), e.key("mark"), []byte("2"), long, e.key("record")))
		e.present("put again by PutDelete", e.key("mark"), "2")
	},
}, {
	name:     "putdelete-life",
	sentence: "PutDelete is Put(put, value, ttl), so the key lives for ttl.",
	waits:    true,
	run: func(e *env) {
		s := need[sessionshare.PutDeleter](e, e.a)
		e.put(e.a, e.key("longer"), "value", e.short())
		e.must("PutDelete", s.PutDelete(e.ctx(), e.key("longer"), []byte("1"), long, e.key("none")))
		e.put(e.a, e.key("shorter"), "value", long)
		gone := e.lasting(e.short(), func() {
			e.must("PutDelete", s.PutDelete(e.ctx(), e.key("shorter"), []byte("1"), e.short(), e.key("none")))
		}).gone
		sleepUntil(gone)
		e.absent("put by PutDelete, after its ttl", e.key("shorter"))
		e.present("put by PutDelete with a longer ttl", e.key("longer"), "1")
	},
}, {
	name:     "putdelete-order",
	sentence: "PutDelete: del is gone only if put is there.",
	run:      putDeleteOrder,
}}

// getMany reads the named keys and checks each against "value of NAME", or nil
// where nothing was put. What was put is asked with Get.
func (e *env) getMany(s sessionshare.BatchGetter, names []string) {
	e.Helper()
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = e.key(name)
	}
	got, err := s.GetMany(e.ctx(), keys)
	e.must("GetMany", err)
	if len(got) != len(keys) {
		e.failf("GetMany of %d keys returned %d values", len(keys), len(got))
	}
	for i, name := range names {
		_, found := e.get(e.a, keys[i])
		if !found && got[i] != nil {
			e.failf("GetMany of %d keys: value %d is not nil, but its key is missing", len(keys), i)
		}
		if found && string(got[i]) != "value of "+name {
			e.failf("GetMany of %d keys: value %d is %s, want the value of its key", len(keys), i, brief(string(got[i])))
		}
	}
}

// getManyOneMoment: one replica counts two keys up, first before last, so at
// every moment first is last or one more. The other reads both in one GetMany
// with many keys between them, in both orders.
func getManyOneMoment(e *env) {
	s := need[sessionshare.BatchGetter](e, e.b)
	first, last := e.key("first"), e.key("last")
	forth, back := []string{first}, []string{last}
	for i := range 62 {
		forth, back = append(forth, e.key(strconv.Itoa(i))), append(back, e.key(strconv.Itoa(i)))
	}
	forth, back = append(forth, last), append(back, first)
	var done atomic.Bool
	var reads atomic.Int32
	var torn atomic.Pointer[string]
	count := func() (err error) {
		defer done.Store(true)
		rounds(4000, func(i int) {
			if reads.Load() > 100 {
				return
			}
			runtime.Gosched()
			for _, key := range []string{first, last} {
				if err == nil {
					err = e.a.Put(e.ctx(), key, []byte(strconv.Itoa(i+1)), long)
				}
			}
		})
		return err
	}
	number := func(b []byte) int {
		n, _ := strconv.Atoi(string(b))
		return n
	}
	read := func() error {
		for !done.Load() {
			for i, keys := range [][]string{forth, back} {
				runtime.Gosched()
				got, err := s.GetMany(e.ctx(), keys)
				if err != nil {
					return err
				}
				f, l := number(got[0]), number(got[len(got)-1])
				if i == 1 {
					f, l = l, f
				}
				reads.Add(1)
				if f != l && f != l+1 {
					found := strconv.Itoa(f) + " and " + strconv.Itoa(l)
					torn.Store(&found)
				}
			}
		}
		return nil
	}
	e.together(count, read, read)
	if found := torn.Load(); found != nil {
		e.failf("GetMany returned %s for two keys of which the first is always as far as the second, or one ahead", *found)
	}
}

func putDeleteOrder(e *env) {
	s := need[sessionshare.PutDeleter](e, e.a)
	var lost atomic.Bool
	rounds(40, func(i int) {
		mark, record := e.key("mark"+strconv.Itoa(i)), e.key("record"+strconv.Itoa(i))
		e.put(e.a, record, "record", long)
		var done atomic.Bool
		watch := func() error {
			for finish := false; !finish; {
				finish = done.Load()
				_, found, err := e.b.Get(e.ctx(), record)
				if err != nil {
					return err
				}
				if found {
					runtime.Gosched() // spinning would hold up who deletes
					continue
				}
				_, marked, err := e.b.Get(e.ctx(), mark)
				if !marked {
					lost.Store(true)
				}
				return err
			}
			return nil
		}
		e.together(watch, func() error {
			defer done.Store(true)
			return s.PutDelete(e.ctx(), mark, []byte("1"), long, record)
		})
	})
	if lost.Load() {
		e.failf("the deleted key was gone while the put one was not there")
	}
}
