package sessionshare

import "context"

// end makes the copy stop serving and finishes it in the background: running
// calls get their answers out. Only the first call counts.
func (c *hostedCopy) end(cause error) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	c.ending, c.cause = true, cause
	c.mu.Unlock()
	c.r.copies.CompareAndDelete(c.id, c)
	c.r.digests.delete(c.digest, c)
	c.r.asks.over(c)
	c.endStreams()
	c.r.owned.run(c.finish)
}

// finish waits until no client waits for an answer of this copy, and closes the
// SDK session. Orphans hold nothing up: they are cancelled, at once and again
// when no other call is left.
func (c *hostedCopy) finish() {
	c.cancelOrphans()
	c.waitCalls(c.r.cut)
	if c.r.cut.Err() != nil {
		c.cancelCalls()
		c.waitCalls(context.Background())
	}
	c.cancelOrphans()
	c.endContext(c.cause)
	if c.session != nil {
		_ = c.session.Close() // waits for handlers that do not obey
		hostedSessions.delete(c.session, c)
	}
}

// endContext ends Session.Context.
func (c *hostedCopy) endContext(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause, c.over = cause, true
	if c.cancel != nil {
		c.cancel(cause)
	}
}

// waitCalls waits until no admitted request is left, or ctx is done.
func (c *hostedCopy) waitCalls(ctx context.Context) {
	c.mu.Lock()
	if c.uses == 0 {
		c.mu.Unlock()
		return
	}
	if c.quiet == nil {
		c.quiet = make(chan struct{})
	}
	quiet := c.quiet
	c.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}

// cancelOrphans cancels the handlers whose clients have gone.
func (c *hostedCopy) cancelOrphans() {
	c.cancelPosts(c.postsWhere(func(p *post) bool { return p.served }))
}

// cancelCalls cancels all handlers.
func (c *hostedCopy) cancelCalls() {
	c.cancelPosts(c.postsWhere(func(*post) bool { return true }))
}

func (c *hostedCopy) postsWhere(match func(*post) bool) []*post {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*post
	for _, p := range c.posts {
		if !p.internal && p.running > 0 && match(p) {
			out = append(out, p)
		}
	}
	return out
}

func (c *hostedCopy) cancelPosts(posts []*post) {
	for _, p := range posts {
		c.cancelIDs(p.calls...)
	}
}

// cancelIDs cancels calls on this copy, as their client would.
func (c *hostedCopy) cancelIDs(ids ...rawID) {
	for _, id := range ids {
		body := []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`)
		c.deliver(append(append(body, id...), `}}`...), false)
	}
}
