package storetest

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/sessionshare/sessionshare"
)

// bytesCases: keys and values, and what the three methods do to them.
var bytesCases = []testCase{{
	name:     "get-missing",
	sentence: "A missing key is (nil, false, nil).",
	run: func(e *env) {
		value, found, err := e.a.Get(e.ctx(), e.key("never-put"))
		if value != nil || found || err != nil {
			e.failf("Get of a missing key returned (nil: %t, found: %t, error: %v)", value == nil, found, err)
		}
	},
}, {
	name:     "put-get",
	sentence: "Put stores value under key for ttl.",
	run: func(e *env) {
		e.put(e.a, e.key("k"), "value", long)
		e.present("after Put", e.key("k"), "value")
	},
}, {
	name:     "put-replaces-value",
	sentence: "Put replaces the value that the key had.",
	run: func(e *env) {
		for _, value := range []string{"a longer first value", "second", "third value"} {
			e.put(e.a, e.key("k"), value, long)
			e.present("after Put over a value", e.key("k"), value)
		}
	},
}, {
	name:     "delete",
	sentence: "Delete removes key.",
	run: func(e *env) {
		e.put(e.a, e.key("k"), "value", long)
		e.must("Delete", e.a.Delete(e.ctx(), e.key("k")))
		e.absent("after Delete", e.key("k"))
		e.put(e.a, e.key("k"), "again", long)
		e.present("after Delete and Put", e.key("k"), "again")
	},
}, {
	name:     "delete-missing",
	sentence: "Removing a missing key is no error.",
	run: func(e *env) {
		e.must("Delete of a missing key", e.a.Delete(e.ctx(), e.key("never-put")))
	},
}, {
	name:     "any-bytes",
	sentence: "Values are any bytes.",
	run: func(e *env) {
		for name, value := range awkwardValues() {
			key := e.key(strings.ToLower(strings.ReplaceAll(name, " ", "-")))
			e.put(e.a, key, value, long)
			e.present("a value of "+name, key, value)
		}
	},
}, {
	name:     "value-sizes",
	sentence: "Values are 1 to MaxValueBytes bytes.",
	run: func(e *env) {
		for _, size := range []int{1, 2, 511, 8 << 10, 64<<10 + 1, sessionshare.MaxValueBytes} {
			key, value := e.key(strconv.Itoa(size)), pattern(size, 0)
			e.put(e.a, key, value, long)
			e.present("a value of "+strconv.Itoa(size)+" bytes", key, value)
		}
	},
}, {
	name:     "key-sizes",
	sentence: "Keys are 1 to MaxKeyBytes bytes.",
	run: func(e *env) {
		fill := strings.Repeat("k", sessionshare.MaxKeyBytes-len(e.prefix)-1)
		e.distinct("keys of 200 bytes that differ in the last", e.prefix+fill+"1", e.prefix+fill+"2", e.prefix+fill[1:])
		e.distinct("keys of 1 and 2 bytes", "q", "q7", "7")
	},
}, {
	name:     "key-characters",
	sentence: "Keys are [a-z0-9._-].",
	run: func(e *env) {
		p := e.prefix
		e.distinct("keys with all characters", p+"a.b", p+"a_b", p+"a-b", p+"a..b", p+"a.b.", "."+p, ".."+p, "-"+p, "_"+p,
			p+"__", p+"--", p+"a", p+"abcdefghijklmnopqrstuvwxyz0123456789._-")
	},
}, {
	name:     "copies-in",
	sentence: "Values are copied at the border: the caller may change a slice after Put returned.",
	run:      copiesIn,
}, {
	name:     "copies-out",
	sentence: "Values are copied at the border: the caller may change a slice that Get gave it.",
	run:      copiesOut,
}}

// awkwardValues are values that encodings, drivers and text columns break.
func awkwardValues() map[string]string {
	return map[string]string{
		"every byte":       everyByte(),
		"NULs":             "\x00\x00\x00",
		"one NUL":          "\x00",
		"invalid UTF-8":    "\xff\xfe\xc3(\x80",
		"spaces and lines": " \r\n value\r\n\t ",
		"a digit":          "1",
		"a number":         "007.50",
		"quotes":           `'"\'; --` + "`$1 %s {}",
		"escapes":          `\x41\\u0041`,
		"JSON null":        "null",
		"base64":           "dmFsdWU=",
	}
}

func everyByte() string {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	return string(all[:])
}

// distinct puts a value of its own under each key and reads all back, then
// deletes one after the other and sees that the others stay.
func (e *env) distinct(what string, keys ...string) {
	e.Helper()
	for _, key := range keys {
		e.put(e.a, key, "value of "+key, long)
	}
	for i := range keys {
		for _, key := range keys[i:] {
			e.present(what, key, "value of "+key)
		}
		e.must("Delete", e.a.Delete(e.ctx(), keys[i]))
		e.absent(what+", after Delete", keys[i])
	}
}

// A write is one way to store a value under a key that is missing.
type write struct {
	name string
	do   func(ctx context.Context, key string, value []byte, ttl time.Duration) error
}

// writes returns all ways to write that s has.
func writes(e *env, s sessionshare.SharedStore) []write {
	all := []write{{"Put", s.Put}}
	if p, ok := as[sessionshare.PutDeleter](s); ok {
		all = append(all, write{"PutDelete", func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			return p.PutDelete(ctx, key, value, ttl, e.key("writes-deleted"))
		}})
	}
	if c, ok := as[sessionshare.CompareAndSwapper](s); ok {
		all = append(all, write{"CompareAndSwap", func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			_, err := c.CompareAndSwap(ctx, key, nil, value, ttl)
			return err
		}})
	}
	return all
}

func copiesIn(e *env) {
	for _, w := range writes(e, e.a) {
		key := e.key("in-" + strings.ToLower(w.name))
		value := []byte("as it was")
		e.must(w.name, w.do(e.ctx(), key, value, long))
		copy(value, "changed !")
		e.present("after "+w.name+", when the caller changed its slice", key, "as it was")
	}
}

func copiesOut(e *env) {
	e.put(e.a, e.key("k"), "as it was", long)
	value, _, err := e.a.Get(e.ctx(), e.key("k"))
	e.must("Get", err)
	copy(value, "changed !")
	_ = append(value[:len(value):cap(value)], '!')
	e.present("when the caller changed what Get returned", e.key("k"), "as it was")
	if s, ok := as[sessionshare.BatchGetter](e.a); ok {
		values, err := s.GetMany(e.ctx(), []string{e.key("k"), e.key("k")})
		e.must("GetMany", err)
		copy(values[0], "changed !")
		if len(values) == 2 && values[1] != nil && string(values[1]) != "as it was" {
			e.failf("two values of one GetMany share their bytes")
		}
		e.present("when the caller changed what GetMany returned", e.key("k"), "as it was")
	}
}
