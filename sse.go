package sessionshare

import (
	"bytes"
)

// An sseEvent is one block of an SSE stream as the SDK writes it: lines up to and
// with an empty one. The slices point into text.
type sseEvent struct {
	text []byte
	id   []byte // value of its id field; nil without one
	data []byte // value of its data field, which the SDK never splits; nil without one
	kind string // the telling key of data; set by clientEvent
}

// answers reports whether the event is the answer to a call.
func (e *sseEvent) answers() bool { return e.kind == "result" || e.kind == "error" }

var (
	eventEnd  = []byte("\n\n")
	fieldID   = []byte("id: ")
	fieldData = []byte("data: ")
)

// parseEvent takes an event apart.
func parseEvent(text []byte) sseEvent {
	e := sseEvent{text: text}
	for rest := text; len(rest) > 0; {
		// The SDK puts data last, and it may be large: it is not searched.
		if bytes.HasPrefix(rest, fieldData) {
			e.data = bytes.TrimRight(rest[len(fieldData):], "\n")
			if bytes.IndexByte(e.data[:min(len(e.data), 1)], '\n') >= 0 {
				e.data = nil
			}
			return e
		}
		line, after, found := bytes.Cut(rest, []byte("\n"))
		if bytes.HasPrefix(line, fieldID) {
			e.id = line[len(fieldID):]
		}
		if !found {
			break
		}
		rest = after
	}
	return e
}

// An sseSplitter cuts what is written to a stream into events, wherever the
// boundaries of the writes are.
type sseSplitter struct{ partial []byte }

// maxEvent bounds what waits for the end of an event. The SDK writes an event in
// one piece, so nothing waits but by its change of mind.
const maxEvent = 64 << 20

// split calls event for each event that b completes. The slice is valid during
// the call.
func (s *sseSplitter) split(b []byte, event func(text []byte) error) error {
	if len(s.partial) > 0 {
		// The end may lie across the border of two writes.
		from := len(s.partial) - 1
		s.partial = append(s.partial, b...)
		i := bytes.Index(s.partial[from:], eventEnd)
		switch {
		case i < 0 && len(s.partial) > maxEvent:
			return errEventLarge
		case i < 0:
			return nil
		}
		b, s.partial = s.partial, nil
	}
	for len(b) > 0 {
		i := bytes.Index(b, eventEnd)
		if i < 0 {
			if len(b) > maxEvent {
				return errEventLarge
			}
			s.partial = bytes.Clone(b)
			return nil
		}
		if err := event(b[:i+len(eventEnd)]); err != nil {
			return err
		}
		b = b[i+len(eventEnd):]
	}
	return nil
}

// clientEvent returns what the client gets to see of an event of c: questions
// carry cluster-wide IDs, and event IDs name the copy. It is the same slice if
// nothing is to change.
func (c *hostedCopy) clientEvent(text []byte) (out []byte, e sseEvent) {
	e = parseEvent(text)
	var edits []edit
	if len(e.id) > 0 && e.id[0] == '_' {
		edits = append(edits, edit{e.id[:0], []byte(c.streamName(""))})
	}
	if e.kind = tellingKey(e.data); e.kind == "method" {
		if data := c.renumbered(e.data); len(data) > 0 && &data[0] != &e.data[0] {
			edits = append(edits, edit{e.data, data})
		}
	}
	return splice(text, edits...), e
}

// mergeable are the notifications that say no more than "look again": two of the
// same are as good as one.
func mergeable(data []byte) bool {
	var method []byte
	if i := skipSpace(data, 0); i < len(data) && data[i] == '{' && len(data) <= maxMergeable {
		scanObject(data, i, func(key, value []byte) bool {
			if string(key) == "method" {
				method = unquote(value)
			}
			return string(key) != "id" && method == nil
		})
	}
	switch string(method) {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed",
		"notifications/resources/list_changed", "notifications/resources/updated":
		return true
	}
	return false
}

const maxMergeable = 3 << 10 // of data, so that it fits into a hint

// eventOf makes an event of data, as the SDK would.
func eventOf(data []byte) []byte {
	return append(append(append([]byte("event: message\n"), fieldData...), data...), eventEnd...)
}
