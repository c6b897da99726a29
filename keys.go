package sessionshare

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// Key prefixes, after Options.KeyPrefix. Session IDs are bearer credentials:
// a key holds a digest, never the ID.
const (
	keySession  = "session."  // the record
	keyClosed   = "closed."   // close mark of a session
	keyEndpoint = "endpoint." // close mark of one incarnation of an endpoint
	keyState    = "state."    // what the client has set
	keyStream   = "stream."   // which replica holds the client's stream
	keyData     = "data."     // what the host keeps with the session
	keyReply    = "reply."    // an answer for another replica
	keyCancel   = "cancel."   // a cancelled call
	keyOut      = "out."      // a message for the stream that another replica holds
)

// maxPrefix leaves room in a key for the longest name that follows the prefix.
const maxPrefix = 64 // out.: 4 + 64 + 1 + 16 + 1 + 19

// A sessionDigest is what the store and the logs know of a session ID: its
// SHA-256, in hexadecimal.
type sessionDigest string

func digestOf(sessionID string) sessionDigest {
	sum := sha256.Sum256([]byte(sessionID))
	return sessionDigest(hex.EncodeToString(sum[:]))
}

// short is the part of a digest that logs carry.
func (d sessionDigest) short() string { return string(d[:8]) }

// A keyspace forms the keys of one cluster.
type keyspace struct{ prefix string }

func (k keyspace) session(d sessionDigest) string { return k.prefix + keySession + string(d) }
func (k keyspace) closed(d sessionDigest) string  { return k.prefix + keyClosed + string(d) }
func (k keyspace) state(d sessionDigest) string   { return k.prefix + keyState + string(d) }
func (k keyspace) stream(d sessionDigest) string  { return k.prefix + keyStream + string(d) }
func (k keyspace) data(d sessionDigest) string    { return k.prefix + keyData + string(d) }

// reply and cancel are keys about one request of a session; id is its JSON text.
func (k keyspace) reply(d sessionDigest, id string) string  { return k.about(keyReply, d, id) }
func (k keyspace) cancel(d sessionDigest, id string) string { return k.about(keyCancel, d, id) }

func (k keyspace) about(kind string, d sessionDigest, id string) string {
	sum := sha256.Sum256([]byte(string(d) + "\x00" + id))
	return k.prefix + kind + hex.EncodeToString(sum[:])
}

// out is the key of the nth message of the copy with this tag.
func (k keyspace) out(d sessionDigest, tag string, n int64) string {
	return k.prefix + keyOut + string(d) + "." + tag + "." + strconv.FormatInt(n, 10)
}

// endpoint is the key of the close mark of e. Name and incarnation are hashed
// apart, so that no two pairs share a key: a name holds no NUL (checked when a
// session opens).
func (k keyspace) endpoint(e Endpoint) string {
	h := sha256.New()
	h.Write([]byte(e.Name))
	h.Write([]byte{0})
	h.Write([]byte(e.Incarnation))
	return k.prefix + keyEndpoint + hex.EncodeToString(h.Sum(nil))
}

// validPrefix reports whether p can begin a key of a SharedStore.
func validPrefix(p string) bool {
	if len(p) > maxPrefix {
		return false
	}
	for i := range len(p) {
		c := p[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Bounds on a session ID. What a client sends may be as short as it likes, for
// it will not be found; what NewSessionID returns must be hard to guess.
const (
	maxSessionID    = 256
	minNewSessionID = 16
)

// validSessionID reports whether id can be a session ID at all: visible ASCII,
// as the protocol demands, and of bounded length.
func validSessionID(id string) bool {
	if len(id) == 0 || len(id) > maxSessionID {
		return false
	}
	for i := range len(id) {
		if id[i] < 0x21 || id[i] > 0x7e {
			return false
		}
	}
	return true
}
