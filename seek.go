package sessionshare

import (
	"context"
	"time"
)

// seekPauses are how long a question waits before each look for a stream on which
// it can be asked.
var seekPauses = [...]time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond}

// seekStream makes sure that a question which goes to the session's stream finds
// it. The client may have opened it on another replica a moment ago, and the hint
// which says so may be under way; this replica may have begun to hear hints a
// moment ago. Where there is no stream the question fails a little later.
func (c *hostedCopy) seekStream(ctx context.Context) {
	if c.r.hints.pub == nil || copyFrom(ctx) != nil && !c.h.copyOpts.JSONResponse {
		return // the question goes to the stream of its call
	}
	for _, pause := range seekPauses {
		if c.connected(ctx) {
			return
		}
		if sleep(ctx, pause); ctx.Err() != nil || c.recheck(ctx, c.hintedKind(), false) != nil {
			return
		}
	}
	c.connected(ctx)
}

// connected reports whether the copy has a stream, the client's or one that
// forwards, and waits until the SDK has begun to use it.
func (c *hostedCopy) connected(ctx context.Context) bool {
	c.mu.Lock()
	s := c.streams[""]
	c.mu.Unlock()
	if s == nil {
		return false
	}
	began := s.ready
	if !s.own {
		began = s.w.open
	}
	select {
	case <-began:
		return true
	case <-s.done:
	case <-ctx.Done():
	}
	return false
}
