package sessionshare

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Every stream begins with a block that has an id and no data. Without it the
// SDK's Go client gives a session up at the sixth end of its stream; with it, the
// stream has made progress. The id is new each time, for the same reason:
//
//	~RANDOM            a fresh stream is meant when it comes back
//	~RANDOM~N~EVENT    this event was asked for and could not be served yet, N times
const (
	blockMark = "~"

	// maxLastEventID bounds what is carried along, maxCarried how often.
	maxLastEventID = 512
	maxCarried     = 'z' - 'a'
)

// A streamAsk is what a GET asks for.
type streamAsk struct {
	stream string // "" is the session's stream, else that of a call
	event  string // Last-Event-ID as the SDK knows it; "" for a fresh stream
	raw    string // the event as the client knows it
	tries  byte   // how often it was carried already
}

// again is what the block says if the client asks for the same once more.
func (a *streamAsk) again() string {
	if a.raw == "" || a.tries >= maxCarried || len(a.raw) > maxLastEventID {
		return ""
	}
	return string('a'+a.tries) + blockMark + a.raw
}

// parseAsk takes a Last-Event-ID apart.
func parseAsk(lastEventID string) (a streamAsk) {
	a.raw = lastEventID
	if !strings.HasPrefix(lastEventID, blockMark) {
		return a
	}
	a.raw = ""
	if parts := strings.SplitN(lastEventID, blockMark, 4); len(parts) == 4 && len(parts[2]) == 1 {
		a.tries = parts[2][0] - 'a' + 1
		if a.tries <= maxCarried {
			a.raw = parts[3]
		}
	}
	return a
}

// writeBlock writes a block. One that carries an event looks as the SDK's own first
// events do: the TypeScript SDK's parser passes on no event without a data field,
// and a client that has not seen the ID comes back for the session's stream, where
// its call is never answered. It says when to come again too, soon at first, for a
// client that was told to hurry once would use all its tries up in no time.
func writeBlock(w http.ResponseWriter, carried string) {
	id := "id: " + blockMark + rand.Text()[:10]
	if carried != "" {
		retry := min(100<<(carried[0]-'a'), 1000)
		id += blockMark + carried + "\nevent: prime\nretry: " + strconv.Itoa(retry) + "\ndata: "
	}
	_, _ = w.Write([]byte(id + "\n\n"))
}

// emptyStream answers a GET that cannot be served: all clients reopen a stream
// that has ended, and none survives an error.
func emptyStream(w http.ResponseWriter, lastEventID string) {
	ask := parseAsk(lastEventID)
	streamHeader(w.Header())
	w.WriteHeader(http.StatusOK)
	writeBlock(w, ask.again())
	_ = http.NewResponseController(w).Flush()
}

func streamHeader(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Connection", "keep-alive")
}

// askedFor says what a Last-Event-ID means on this copy. The session's stream has
// a name of its own on each copy, see streamName; those of calls are the SDK's,
// which are one of a kind.
func (c *hostedCopy) askedFor(lastEventID string) streamAsk {
	a := parseAsk(lastEventID)
	stream, index, _ := strings.Cut(a.raw, "_")
	switch {
	case stream == c.streamName(""):
		a.event = "_" + index
	case c.h.events != nil && (len(stream) == copyTag || a.raw == "" && lastEventID != ""):
		// The session's stream on another copy, or one that was not served: it goes
		// on from where it was last served on this copy.
		a.event, a.raw = c.lastSeen(), ""
	case a.raw != "":
		a.stream, a.event = stream, a.raw
	}
	return a
}

// chase is how long a stream waits that comes back to a replica from which it was
// just taken by another one: a client that holds two open must not make them end
// each other all the time.
const (
	chaseMemory = 10 * time.Second
	chaseFirst  = 250 * time.Millisecond
	chaseMax    = 10 * time.Second
)

func (c *hostedCopy) slowDown(ctx context.Context, w *streamWriter) {
	now := c.r.now()
	c.mu.Lock()
	var pause time.Duration
	if rare := c.rare; rare == nil {
	} else if rare.takes > 0 && since(now, rare.takenAt) < chaseMemory {
		pause = min(chaseFirst<<min(rare.takes, 10), chaseMax)
	} else {
		rare.takes = 0
	}
	c.mu.Unlock()
	if pause > 0 {
		w.start() // clients wait for the header
		sleep(ctx, pause)
	}
}
