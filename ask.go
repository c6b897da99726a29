package sessionshare

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Questions are requests from server to client: elicitation, sampling, roots,
// ping. The SDK numbers them 1, 2, 3 on every copy, so that the answer to one
// copy's question would do for another's. On its way out each gets an ID that is
// one of a kind in the cluster and names the copy that asks:
//
//	TAG.NUMBER.MAC    the id of a question
//	TAG.pTOKEN.MAC    the progress token of one, TOKEN being its JSON in base64url
//
// The tag begins with that of the replica, then comes the copy's own: after
// eviction and resume the SDK counts from 1 again. The MAC, under a key in the
// record, makes a forged one cost nothing.
const (
	copyTag   = replicaTag + 8 // letters
	macDigits = 16
	replyTTL  = 5 * time.Minute

	// maxRelayed bounds an answer that is to reach another replica.
	maxRelayed = MaxValueBytes
	maxToken   = 256 // bytes of a progress token of the host's own
)

func (r *record) mac(tag, what string) string {
	h := hmac.New(sha256.New, r.Key)
	h.Write([]byte(tag + "." + what))
	return hex.EncodeToString(h.Sum(nil))[:macDigits]
}

// sealed returns the ID, quoted, under which the cluster knows what.
func (c *hostedCopy) sealed(what string) []byte {
	return []byte(`"` + c.tag + "." + what + "." + c.rec.mac(c.tag, what) + `"`)
}

// unseal takes an ID apart that a client sent; quoted is its JSON text. It
// reports false for anything that no copy of this session has made.
func (r *record) unseal(quoted []byte) (tag, what string, ok bool) {
	if len(quoted) > 2*maxToken+copyTag+macDigits+8 {
		return "", "", false
	}
	parts := strings.Split(string(unquote(quoted)), ".")
	if len(parts) != 3 || len(parts[0]) != copyTag || len(parts[2]) != macDigits {
		return "", "", false
	}
	tag, what = parts[0], parts[1]
	return tag, what, hmac.Equal([]byte(r.mac(tag, what)), []byte(parts[2]))
}

// outgoing returns what a client gets to see of a message that the SDK sends: the
// same slice, unless it is a question or speaks of one. A question is noted, for
// its answer may come in elsewhere.
func (c *hostedCopy) outgoing(data []byte) []byte {
	if tellingKey(data) != "method" {
		return data
	}
	return c.renumbered(data)
}

// renumbered is outgoing for requests and notifications: a function of its own,
// for its frame would make the stack of every call's goroutine grow.
func (c *hostedCopy) renumbered(data []byte) []byte {
	var m message
	if scanMessage(data, skipSpace(data, 0), &m) < 0 {
		return data
	}
	id, params := m.id, m.params
	switch {
	case id == nil && m.is("notifications/cancelled"):
		if number := member(params, "requestId"); isNumber(number) {
			c.r.asks.drop(c, string(number))
			return splice(data, edit{number, c.sealed(string(number))})
		}
	case isNumber(id):
		edits := []edit{{[]byte(id), c.sealed(string(id))}}
		token := member(member(params, "_meta"), "progressToken")
		if len(token) > 0 && len(token) <= maxToken {
			edits = append(edits, edit{token, c.sealed(tokenPart(token))})
		} else {
			token = nil
		}
		c.r.asks.add(c, string(id), token)
		return splice(data, edits...)
	}
	return data
}

func tokenDecode(part string) ([]byte, error) { return base64.RawURLEncoding.DecodeString(part) }

func tokenPart(token []byte) string { return "p" + base64.RawURLEncoding.EncodeToString(token) }

// member returns the value of a key of an object, nil if it has none.
func member(object []byte, name string) (value []byte) {
	if i := skipSpace(object, 0); i < len(object) && object[i] == '{' {
		scanObject(object, i, func(key, v []byte) bool {
			if string(key) == name {
				value = v
			}
			return true
		})
	}
	return value
}

func isNumber(b []byte) bool {
	if len(b) == 0 || len(b) > 20 {
		return false
	}
	_, err := strconv.ParseInt(string(b), 10, 64)
	return err == nil
}

// An edit replaces a part of a message. old is a slice of it.
type edit struct{ old, new []byte }

// splice returns b with edits made, which are in order and do not overlap.
func splice(b []byte, edits ...edit) []byte {
	if len(edits) == 0 {
		return b
	}
	out := make([]byte, 0, len(b)+128*len(edits))
	at := 0
	for _, e := range edits {
		start := cap(b) - cap(e.old) // both end at the same address
		out = append(append(out, b[at:start]...), e.new...)
		at = start + len(e.old)
	}
	return append(out, b[at:]...)
}

// asks knows the questions that copies here have out. While there are any on a
// shared session, one goroutine looks for answers that other replicas have put
// into the store: at once on a hint, else after 100 ms, growing to a second.
type asks struct {
	r *Replica

	mu      sync.Mutex // guards all below
	out     map[askKey]*asked
	running bool
	fresh   bool // a question was added: pauses are short again
	wake    chan struct{}
}

type askKey struct {
	c      *hostedCopy
	number string
}

type asked struct {
	answer   string // key in the store
	progress string // likewise; "" without progress token
	token    []byte
	last     []byte // the progress that was delivered last
}

const (
	askPauseFirst = 100 * time.Millisecond
	askPauseMax   = time.Second
	maxBatch      = 128 // keys of one GetMany
)

func (k *asks) add(c *hostedCopy, number string, token []byte) {
	if k.r.store == nil {
		return
	}
	a := &asked{answer: k.r.keys.reply(c.digest, string(c.sealed(number)))}
	if token != nil {
		a.token = bytes.Clone(token)
		a.progress = k.r.keys.reply(c.digest, string(c.sealed(tokenPart(token))))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.out == nil {
		k.out = map[askKey]*asked{}
	}
	k.out[askKey{c, number}] = a
	if !k.running {
		k.running = true
		k.r.owned.run(k.run)
		return
	}
	k.fresh = true
	k.poke()
}

func (k *asks) drop(c *hostedCopy, number string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.out, askKey{c, number})
}

// over is called when no question of c is out any more. c.mu may be held.
func (k *asks) over(c *hostedCopy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.out {
		if key.c == c {
			delete(k.out, key)
		}
	}
}

// asks counts the questions that handlers of c have out. When there is none left,
// nobody waits for an answer. c.mu is held over all of it: a question that is
// asked meanwhile must not be forgotten.
func (c *hostedCopy) asks(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking += n; c.asking == 0 {
		c.r.asks.over(c)
	}
}

// look makes the poller look now.
func (k *asks) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.poke()
}

// poke wakes the poller. k.mu is held.
func (k *asks) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run looks for answers until no question is out.
func (k *asks) run() {
	pause := askPauseFirst
	for {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(pause*3/2, askPauseMax)
		case <-k.wake:
			timer.Stop()
			pause = askPauseFirst
		case <-k.r.owned.stop:
			timer.Stop()
		}
		k.mu.Lock()
		if k.fresh {
			k.fresh = false
			k.mu.Unlock()
			continue
		}
		if len(k.out) == 0 || k.r.owned.signalled() {
			k.running = false
			k.mu.Unlock()
			return
		}
		waiting := make(map[askKey]asked, len(k.out))
		for key, a := range k.out {
			waiting[key] = *a
		}
		k.mu.Unlock()
		k.fetch(waiting)
	}
}

// fetch reads the keys of all questions at once and delivers what is there.
func (k *asks) fetch(waiting map[askKey]asked) {
	type place struct {
		askKey
		token bool
	}
	var keys []string
	var places []place
	for at, a := range waiting {
		keys, places = append(keys, a.answer), append(places, place{at, false})
		if a.progress != "" {
			keys, places = append(keys, a.progress), append(places, place{at, true})
		}
	}
	for start := 0; start < len(keys); start += maxBatch {
		end := min(start+maxBatch, len(keys))
		values, err := k.r.store.get(context.Background(), keys[start:end]...)
		if err != nil {
			return
		}
		// Progress first: it is over when the answer is there.
		for _, token := range []bool{true, false} {
			for i, value := range values {
				if p := places[start+i]; value != nil && p.token == token {
					k.deliver(p.askKey, keys[start+i], value, token)
				}
			}
		}
	}
}

// deliver gives the SDK of the asking copy what another replica received for it.
func (k *asks) deliver(at askKey, key string, value []byte, token bool) {
	k.mu.Lock()
	a := k.out[at]
	if a == nil || token && bytes.Equal(a.last, value) {
		k.mu.Unlock()
		return
	}
	if token {
		a.last = value
	} else {
		delete(k.out, at)
	}
	k.mu.Unlock()
	s := scan(value)
	var local []byte
	switch {
	case !s.ok || s.batch:
	case token && s.first.is("notifications/progress"):
		if old := member(s.first.params, "progressToken"); old != nil {
			local = splice(value, edit{old, a.token})
		}
	case !token && s.first.response():
		local = splice(value, edit{s.first.id, []byte(at.number)})
	}
	if local != nil {
		// Not as something that a handler will surely see: a client's progress may be
		// malformed, and the SDK drops it then.
		at.c.deliver(local, false)
	}
	if !token {
		k.r.owned.run(func() { _ = k.r.store.delete(context.Background(), key) })
	}
}

// jsonString returns s as JSON.
func jsonString(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}
