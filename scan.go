package sessionshare

import (
	"bytes"
	"encoding/json"
)

// A rawID is the JSON text of a JSON-RPC id.
type rawID []byte

// A message is what the library must know of a JSON-RPC message: its method and
// id, found without decoding the rest. The slices point into the body.
type message struct {
	raw       []byte // the whole message
	hasMethod bool
	method    []byte // unquoted
	id        rawID  // nil: none, or null
	params    []byte // the JSON text; nil: none
}

// call reports whether somebody waits for an answer to m.
func (m *message) call() bool { return m.hasMethod && m.id != nil }

// response reports whether m answers a request of the server.
func (m *message) response() bool { return !m.hasMethod && m.id != nil }

// is reports whether m is a request or notification with this method.
func (m *message) is(method string) bool { return m.hasMethod && string(m.method) == method }

// scanned is what a body turned out to hold. It sees what the SDK sees: exact
// case of keys, the last of two equal keys, the first of several values. Of a
// body that the SDK refuses it may see anything.
type scanned struct {
	ok       bool // it is JSON, as far as was looked
	batch    bool
	trailing bool // something follows the first value
	first    message
	more     []message // of a batch
}

// each calls f for every message.
func (s *scanned) each(f func(*message)) {
	if !s.ok || s.batch && s.more == nil {
		return
	}
	if !s.batch {
		f(&s.first)
	}
	for i := range s.more {
		f(&s.more[i])
	}
}

// calls reports whether somebody waits for an answer to something in the body. A
// body that cannot be understood is taken for a call: the SDK refuses it.
func (s *scanned) calls() bool {
	if !s.ok {
		return true
	}
	any := false
	s.each(func(m *message) { any = any || m.call() })
	return any
}

// single reports whether the body is one message with this method.
func (s *scanned) single(method string) bool { return s.ok && !s.batch && s.first.is(method) }

// scan looks into the body of a POST.
func scan(b []byte) (s scanned) {
	i := skipSpace(b, 0)
	if i >= len(b) {
		return s
	}
	var end int
	switch b[i] {
	case '{':
		end = scanMessage(b, i, &s.first)
	case '[':
		s.batch = true
		end = scanBatch(b, i, &s)
	default:
		return s
	}
	if end < 0 {
		return scanned{}
	}
	s.ok = true
	s.trailing = skipSpace(b, end) < len(b)
	return s
}

func scanBatch(b []byte, i int, s *scanned) (end int) {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for i < len(b) {
		var m message
		if b[i] != '{' {
			return -1
		}
		if i = scanMessage(b, i, &m); i < 0 {
			return -1
		}
		s.more = append(s.more, m)
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ']':
			return i + 1
		case ',':
			i = skipSpace(b, i+1)
		default:
			return -1
		}
	}
	return -1
}

// scanMessage reads the object at b[i] into m and returns where it ends, or -1.
func scanMessage(b []byte, i int, m *message) (end int) {
	defer func() {
		if end >= 0 {
			m.raw = b[i:end]
		}
	}()
	return scanObject(b, i, func(key, value []byte) bool {
		switch string(key) {
		case "method":
			m.hasMethod = true
			m.method = unquote(value)
		case "id":
			m.id = rawID(value)
			if string(value) == "null" {
				m.id = nil
			}
		case "params":
			m.params = value
		}
		return true
	})
}

// scanObject calls member for each member of the object at b[i], until it returns
// false, and returns where the object ends, or where it stopped, or -1.
func scanObject(b []byte, i int, member func(key, value []byte) bool) (end int) {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1
	}
	for i < len(b) && b[i] == '"' {
		start := i
		if i = skipString(b, i); i < 0 {
			return -1
		}
		key := unquote(b[start:i])
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return -1
		}
		start = skipSpace(b, i+1)
		if i = skipValue(b, start); i < 0 {
			return -1
		}
		if !member(key, b[start:i]) {
			return i
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case '}':
			return i + 1
		case ',':
			i = skipSpace(b, i+1)
		default:
			return -1
		}
	}
	return -1
}

// scanKeys calls key for each key of the object at b[i], before its value is
// looked at, until it returns false.
func scanKeys(b []byte, i int, key func([]byte) bool) {
	for i = skipSpace(b, i+1); i < len(b) && b[i] == '"'; i = skipSpace(b, i+1) {
		start := i
		if i = skipString(b, i); i < 0 || !key(unquote(b[start:i])) {
			return
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return
		}
		if i = skipValue(b, skipSpace(b, i+1)); i < 0 {
			return
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ',' {
			return
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that begins at b[i], or -1.
func skipString(b []byte, i int) int {
	i++
	for near := min(i+24, len(b)); i < near; i++ { // most strings are short
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	for {
		if i >= len(b) {
			return -1
		}
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		escapes := 0
		for end-1-escapes >= i && b[end-1-escapes] == '\\' {
			escapes++
		}
		i = end + 1
		if escapes%2 == 0 {
			return i
		}
	}
}

// skipValue returns the index after the value that begins at b[i], or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	start := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func endsScalar(c byte) bool {
	switch c {
	case ',', ']', '}', ' ', '\t', '\r', '\n', ':', '"', '[', '{':
		return true
	}
	return false
}

func skipNested(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		if !nests[b[i]] {
			continue
		}
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			i--
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// nests are the bytes that skipNested must look at: most are not among them.
var nests = [256]bool{'"': true, '{': true, '[': true, '}': true, ']': true}

// unquote returns what a JSON string means; nil if it is no string.
func unquote(quoted []byte) []byte {
	if len(quoted) < 2 || quoted[0] != '"' {
		return nil
	}
	if inner := quoted[1 : len(quoted)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return nil
	}
	return []byte(s)
}
