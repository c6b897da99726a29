package sessionshare

import (
	"cmp"
	"encoding/json"
)

// State is what a client has set on its session: the log level, subscriptions,
// and that its roots have changed. It is a set of elements, each with a version;
// the highest version wins, so that replicas which write at once lose nothing, and
// an unsubscribe stays undone. A version is higher than all that its writer knew,
// and at least the time in milliseconds: a replica that cannot read the store does
// not know the one before.
type sessionState map[string]element

// An element is one fact. A fact that is off stays, or a slower replica would
// bring it back.
type element struct {
	Version int64  `json:"n"`
	Writer  string `json:"w"` // tag of the copy; decides between equal versions
	Off     bool   `json:"off,omitempty"`
	Value   string `json:"v,omitempty"` // the level
}

// Names of elements. A URI follows its prefix.
const (
	elementLevel = "level"
	elementRoots = "roots"
	elementData  = "data" // the host has stored data of its own, see data.go
	elementURI   = "uri "
)

// Bounds on the state of one session.
const (
	maxElements  = 1000
	maxURI       = 2 << 10
	maxStateSize = 192 << 10
)

// newer reports whether e wins over other.
func (e element) newer(other element) bool {
	return cmp.Or(cmp.Compare(e.Version, other.Version), cmp.Compare(e.Writer, other.Writer)) > 0
}

// merge takes from other what is newer there, and reports whether s has anything
// that other lacks.
func (s sessionState) merge(other sessionState) (ahead bool) {
	for name, e := range other {
		if e.newer(s[name]) {
			s[name] = e
		}
	}
	for name, e := range s {
		ahead = ahead || e.newer(other[name])
	}
	return ahead
}

func (s sessionState) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil || len(b) > maxStateSize {
		return nil
	}
	return b
}

func decodeState(b []byte) sessionState {
	var s sessionState
	if len(b) > MaxValueBytes || json.Unmarshal(b, &s) != nil || len(s) > 2*maxElements {
		return nil
	}
	return s
}

// room makes room for one more element: what is off goes first, the oldest of it.
// It reports false if there is none: what is shared already goes on to be.
func (s sessionState) room(name string) bool {
	for len(s) >= maxElements || s.size()+elementSize(name) > maxStateSize {
		oldest := ""
		for name, e := range s {
			if e.Off && (oldest == "" || e.Version < s[oldest].Version) {
				oldest = name
			}
		}
		if oldest == "" {
			return false
		}
		delete(s, oldest)
	}
	return true
}

// size is at least what s takes when it is encoded.
func (s sessionState) size() (n int) {
	for name := range s {
		n += elementSize(name)
	}
	return n
}

func elementSize(name string) int { return len(jsonString(name)) + 128 }
