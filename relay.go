package sessionshare

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// What a client sends lands on any replica, and some of it is meant for a copy
// elsewhere: answers to questions, progress of them, and cancellations of calls.
// A relay is one such message; it goes through the store.
type relay struct {
	key   string
	value []byte
	ttl   time.Duration

	to   string // the replica that gets a hint; "" all
	kind byte
}

const (
	cancelTTL  = time.Minute
	maxCancels = 16 // notes at a time, of a session on a replica
	maxCallID  = 512
)

var errRelayLarge = &refusal{http.StatusRequestEntityTooLarge, "an answer for another replica may have at most 256 KiB"}

// incoming looks at what a client has sent to c. It returns the body as this
// copy's SDK may see it, the questions of this copy that it answers, and what must
// reach other replicas. What the SDK must not take for an answer to a question of
// this copy keeps, or gets, an ID that no question of the SDK has.
func (c *hostedCopy) incoming(b *body) (data []byte, answers []string, relays []relay, err error) {
	data = b.data
	var edits []edit
	b.each(func(m *message) {
		switch {
		case m.response():
			tag, what, ok := c.rec.unseal(m.id)
			switch {
			case !ok && m.id[0] != '"':
				edits = append(edits, edit{m.id, []byte(`"nobody"`)})
			case !ok || !isNumber([]byte(what)):
			case tag == c.tag:
				edits = append(edits, edit{m.id, []byte(what)})
				answers = append(answers, what)
			case len(m.raw) > maxRelayed:
				err = errRelayLarge
			default:
				relays = append(relays, c.reply(m, m.id, tag))
			}
		case m.is("notifications/progress"):
			token := member(m.params, "progressToken")
			tag, what, ok := c.rec.unseal(token)
			if !ok || what == "" || what[0] != 'p' {
				return
			}
			original, bad := tokenOf(what)
			switch {
			case bad:
			case tag == c.tag:
				edits = append(edits, edit{token, original})
			case len(m.raw) > maxRelayed:
				c.r.log.Warn("sessionshare: a client's progress for another replica is dropped, it is too large", "session", c.Digest(), "bytes", len(m.raw))
			default:
				relays = append(relays, c.reply(m, token, tag))
			}
		case m.is("notifications/cancelled"):
			if id := member(m.params, "requestId"); len(id) > 0 && len(id) <= maxCallID && !c.runs(id) && c.mayCancel() {
				relays = append(relays, relay{
					key: c.r.keys.cancel(c.digest, callID(id)), value: cancelNote(c.r.now()), ttl: cancelTTL,
					kind: hintLook,
				})
			}
		}
	})
	return splice(data, edits...), answers, relays, err
}

// reply is the relay of a message to the replica that tag names.
func (c *hostedCopy) reply(m *message, id []byte, tag string) relay {
	return relay{
		// However the client spells the ID.
		key: c.r.keys.reply(c.digest, `"`+string(unquote(id))+`"`), value: append([]byte(nil), m.raw...), ttl: replyTTL,
		to: tag[:replicaTag], kind: hintReply,
	}
}

func tokenOf(what string) (token []byte, bad bool) {
	token, err := tokenDecode(what[1:])
	return token, err != nil || !json.Valid(token)
}

// forward puts relays into the store.
func (c *hostedCopy) forward(ctx context.Context, relays []relay) error {
	if c.r.store == nil {
		return nil // there is no other replica
	}
	for _, m := range relays {
		if err := c.r.store.put(ctx, m.key, m.value, m.ttl); err != nil {
			c.uncount(relays)
			return unsure("the store does not take a message for another replica", err)
		}
		c.r.hints.publishSoon(m.to, m.kind, string(c.digest))
	}
	return nil
}

// callID returns a JSON-RPC id in a form in which equal ones are equal: 1 is 1.0,
// but not "1".
func callID(id []byte) string {
	if len(id) > 0 && id[0] == '"' {
		return string(jsonString(string(unquote(id))))
	}
	if f, err := strconv.ParseFloat(string(id), 64); err == nil && math.Abs(f) < 1<<62 {
		return strconv.FormatInt(int64(f), 10)
	}
	return string(id)
}

// runs reports whether a call with this ID is in flight on this copy.
func (c *hostedCopy) runs(id []byte) bool {
	want := callID(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.posts {
		for _, call := range p.calls {
			if !p.internal && callID(call) == want {
				return true
			}
		}
	}
	return false
}

// mayCancel accounts for one more note, and reports false if there are too many.
func (c *hostedCopy) mayCancel() bool {
	now := c.r.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	rare := c.rarely()
	for len(rare.cancels) > 0 && since(now, rare.cancels[0]) >= cancelTTL {
		rare.cancels = rare.cancels[1:]
	}
	if len(rare.cancels) >= maxCancels {
		return false
	}
	rare.cancels = append(rare.cancels, now)
	return true
}

// uncount takes back what mayCancel has accounted for: the client's message is
// held, and comes again.
func (c *hostedCopy) uncount(relays []relay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rare := c.rarely()
	for _, m := range relays {
		if n := len(rare.cancels); m.kind == hintLook && n > 0 {
			rare.cancels = rare.cancels[:n-1]
		}
	}
}

// A note says when a call was cancelled, by the wall clock of the replica where
// the cancellation came in: in milliseconds.
func cancelNote(now time.Time) []byte { return strconv.AppendInt(nil, now.UnixMilli(), 10) }

// older reports whether a note was made before a call began, and so means an
// earlier call with the same ID. Replicas' clocks may differ: a note that could
// not be there any more, if they agreed, is taken to mean the call.
func older(note []byte, begun, now time.Time) bool {
	ms, err := strconv.ParseInt(string(note), 10, 64)
	if err != nil {
		return false
	}
	at := time.UnixMilli(ms)
	return at.Before(begun.Truncate(time.Millisecond)) && now.Sub(at) < 2*cancelTTL+now.Sub(begun)
}

// means reports whether a note means this call: it was made while the call ran. A
// note that was not there when it was looked for before certainly was.
func (c *hostedCopy) means(call longCall, note []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return call.p.unnoted || !older(note, call.begun, c.r.now())
}

// A running call for which a note may be in the store.
type longCall struct {
	c     *hostedCopy
	p     *post
	id    rawID
	begun time.Time
}

// longCalls returns the calls of c that have run for long enough to be looked
// after. c.mu is not held.
func (c *hostedCopy) longCalls(now time.Time, atLeast time.Duration) (out []longCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.saved == savedNever {
		return nil
	}
	for _, p := range c.posts {
		if p.internal || p.running == 0 || since(now, p.begun) < atLeast {
			continue
		}
		for _, id := range p.calls {
			out = append(out, longCall{c, p, id, p.begun})
		}
	}
	return out
}

// cancelTick is how often running calls are looked after, and for how long one
// runs before it is.
const cancelTick = time.Second

// lookForCancels reads the notes for calls, all at once, and cancels those that
// are meant.
func (r *Replica) lookForCancels(calls []longCall) {
	for len(calls) > 0 {
		some := calls[:min(maxBatch, len(calls))]
		calls = calls[len(some):]
		keys := make([]string, len(some))
		for i, call := range some {
			keys[i] = r.keys.cancel(call.c.digest, callID(call.id))
		}
		values, err := r.store.get(context.Background(), keys...)
		if err != nil {
			return
		}
		for i, call := range some {
			if values[i] == nil {
				call.c.mu.Lock()
				call.p.unnoted = len(call.p.calls) == 1
				call.c.mu.Unlock()
				continue
			}
			if !call.c.means(call, values[i]) {
				continue
			}
			call.c.cancelIDs(call.id)
			_ = r.store.delete(context.Background(), keys[i])
		}
	}
}
