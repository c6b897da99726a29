package sessionshare

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// streamName is the name of a stream in the host's EventStore and in event IDs:
// that of the session's stream is the tag of the copy, for copies do not share it.
// Those of calls are one of a kind as they are.
func (c *hostedCopy) streamName(stream string) string {
	if stream == "" {
		return strings.ToUpper(c.tag)
	}
	return stream
}

// copyEvents is the host's EventStore as the SDK session of one copy sees it.
// Streams have names of the copy's own; questions are stored as the client gets to see them; and the end of a copy
// is not the end of its session, and purges nothing.
type copyEvents struct {
	store mcp.EventStore
	c     *hostedCopy
}

var _ mcp.EventStore = (*copyEvents)(nil)

func (e *copyEvents) Open(ctx context.Context, session, stream string) error {
	return e.store.Open(ctx, session, e.c.streamName(stream))
}

func (e *copyEvents) Append(ctx context.Context, session, stream string, data []byte) error {
	return e.store.Append(ctx, session, e.c.streamName(stream), e.c.outgoing(data))
}

func (e *copyEvents) After(ctx context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	return e.store.After(ctx, session, e.c.streamName(stream), index)
}

// SessionClosed is called when the copy ends, which says something only if it
// ends because the session is closed: each replica may have a store of its own.
func (e *copyEvents) SessionClosed(ctx context.Context, session string) error {
	e.c.mu.Lock()
	cause := e.c.cause
	e.c.mu.Unlock()
	if cause != ErrClosed {
		return nil
	}
	return guarded(func() error { return e.store.SessionClosed(ctx, session) })
}

// purge tells the hosts' EventStores that a session is closed.
func (r *Replica) purge(ctx context.Context, sessionID string) {
	r.eventsMu.Lock()
	defer r.eventsMu.Unlock()
	for _, store := range r.events {
		r.owned.run(func() {
			err := guarded(func() error { return store.SessionClosed(context.WithoutCancel(ctx), sessionID) })
			if err != nil {
				// Its text is the host's, and may name the session.
				r.log.Warn("sessionshare: an EventStore did not purge a session", "session", digestOf(sessionID).short())
			}
		})
	}
}

// sawEvent notes the last event of the session's stream that left this copy, by
// the SDK's ID for it.
func (c *hostedCopy) sawEvent(id []byte) {
	if at, ok := strings.CutPrefix(string(id), "_"); ok {
		if n, ok := parseIndex(at); ok {
			c.mu.Lock()
			c.rarely().seen = n + 1
			c.mu.Unlock()
		}
	}
}

// lastSeen is the Last-Event-ID that goes on after the last event seen; "" if
// there was none.
func (c *hostedCopy) lastSeen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rare == nil || c.rare.seen == 0 {
		return ""
	}
	return "_" + formatIndex(c.rare.seen-1)
}

func parseIndex(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0
}

func formatIndex(n int) string { return strconv.Itoa(n) }

func isUnsupported(err error) bool { return errors.Is(err, http.ErrNotSupported) }
