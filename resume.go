package sessionshare

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// factoryTime is how long a factory may take before requests that wait for it
// are sent away.
const factoryTime = 10 * time.Second

// creationBound is how long a request waits for a copy to be made.
func (r *Replica) creationBound() time.Duration { return r.opts.StoreTimeout + factoryTime }

var (
	errForeignServer = &refusal{http.StatusInternalServerError,
		"this server was not built for session sharing: set mcp.ServerOptions.GetSessionID to the GetSessionID of the sessionshare.Replica that serves it"}
	errStopping = errors.New("sessionshare: replica shuts down")
	errNoServer = errors.New("sessionshare: the server factory returned nil")
	errTaken    = errors.New("sessionshare: a session ID was taken by somebody else: a server that has Replica.GetSessionID must be served through that Replica only")
)

// newCopy makes a copy of the session with ID id, without an SDK session yet. It
// runs the factory. trigger is the request for which the copy is made.
func (h *handler) newCopy(id string, rec *record, resumed bool, trigger *http.Request) (*hostedCopy, error) {
	c := &hostedCopy{h: h, id: id, tag: h.r.hints.self + newTag(copyTag-replicaTag)}
	c.Session = Session{r: h.r, c: c, digest: digestOf(id), rec: rec, resumed: resumed}
	ctx := context.WithValue(context.WithoutCancel(trigger.Context()), sessionKey{}, c)
	if h.r.store == nil {
		c.local = &localData{}
	}
	c.origin = origin{ctx: ctx, host: trigger.Host, header: internalHeader(trigger.Header)}

	// The factory sees only what is recorded: what else it read would differ on
	// the replica that resumes.
	seen := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: rec.Path}, Header: rec.Headers.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
	}).WithContext(ctx)
	if seen.Header == nil {
		seen.Header = http.Header{}
	}
	server, err := callFactory(func() *mcp.Server { return h.getServer(seen) })
	if err == nil && server == nil {
		err = errNoServer
	}
	if err != nil {
		c.endContext(err)
		return nil, err
	}
	watch(server)
	c.server = server
	opts := h.copyOpts
	if h.events != nil {
		opts.EventStore = &copyEvents{h.events, c}
	}
	c.sdk = mcp.NewStreamableHTTPHandler(c.getServer, &opts)
	return c, nil
}

// getServer is what the copy's SDK handler asks for a server, with every request.
// While the copy is made, the SDK takes the session's ID right after it.
func (c *hostedCopy) getServer(*http.Request) *mcp.Server {
	if c.arming != nil {
		c.arming.arm()
	}
	return c.server
}

// internalHeader is what a replay carries of the header of the request that
// triggered it: nothing that speaks of its body, its origin, its session or its
// protocol.
func internalHeader(trigger http.Header) http.Header {
	h := http.Header{}
	for name, values := range trigger {
		switch {
		case strings.HasPrefix(name, "Content-"), strings.HasPrefix(name, "Sec-Fetch-"), strings.HasPrefix(name, "Mcp-"):
		case name == "Origin", name == "Last-Event-Id", name == "Accept", name == "Transfer-Encoding",
			name == "Te", name == "Trailer", name == "Expect", name == "Accept-Encoding":
		default:
			h[name] = values
		}
	}
	return h
}

// serveInitialize serves req, which is to create the SDK session of c, and
// returns the answer. It fails if a session came out that does not have c's ID.
func (c *hostedCopy) serveInitialize(req *http.Request, p *post) (*recorded, error) {
	arming := &arming{armory: &c.r.ids, id: c.id}
	w := newRecorded()
	p.header = req.Header
	c.arming = arming
	c.begin(p)
	var taken bool
	func() {
		defer c.answered(p)
		defer func() { taken = arming.disarm() }()
		c.sdk.ServeHTTP(w, req)
	}()
	c.arming = nil
	c.mu.Lock()
	handled := c.session != nil
	c.mu.Unlock()
	switch got := w.header.Get(headerSessionID); {
	case got == "" && handled && !taken:
		return nil, errForeignServer // its GetSessionID returns ""
	case got == "" || got == c.id:
		return w, nil
	case taken:
		return nil, errTaken
	default:
		return nil, errForeignServer
	}
}

// discard ends a copy that is not published.
func (c *hostedCopy) discard(cause error) { c.end(cause) }

// creation makes a copy with f: once more if somebody took its ID. A panic of what
// the host supplies (NewSessionID, an EventStore) is an error, for it happens on a
// goroutine of this library, where net/http does not catch it.
func creation(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = unsure("making a copy", fmt.Errorf("sessionshare: panic: %v", p))
		}
	}()
	if err = f(); errors.Is(err, errTaken) {
		err = f()
	}
	return err
}

// resume makes a further copy of a session, or returns the one that another
// request made meanwhile.
func (h *handler) resume(req *http.Request, id string, f *found, greets bool) error {
	r := h.r
	done := r.creating.DoChan(id, func() (any, error) {
		r.owned.enter()
		defer r.owned.leave()
		if _, ok := r.lookup(id); ok {
			return nil, nil
		}
		return nil, creation(func() error { return h.replay(req, id, f, greets) })
	})
	bound := time.NewTimer(r.creationBound())
	defer bound.Stop()
	select {
	case res := <-done:
		return res.Err
	case <-req.Context().Done():
		return req.Context().Err()
	case <-bound.C:
		return unsure("resume takes too long", errSlow)
	}
}

// replay makes a copy by sending the recorded initialize through an SDK handler
// under the session's ID, and publishes it. greets says that the request which
// triggers it is itself notifications/initialized.
func (h *handler) replay(req *http.Request, id string, f *found, greets bool) error {
	r, rec, began := h.r, f.rec, f.began
	if r.stopping.Load() {
		return errStopping
	}
	if err := r.check(req.Context(), id, rec); err != nil {
		if errors.Is(err, ErrGone) {
			return ErrGone
		}
		return unsure("Options.Check", err)
	}
	c, err := h.newCopy(id, rec, true, req)
	if err != nil {
		r.log.Warn("sessionshare: resume failed", "session", digestOf(id).short(), "error", err)
		return unsure("resume failed", err)
	}
	if err := c.initialize(rec, greets); err != nil {
		c.discard(ErrEvicted)
		r.log.Warn("sessionshare: resume failed", "session", c.Digest(), "error", err)
		return err
	}
	c.mu.Lock() // the handler of the replayed notifications/initialized may run
	c.saved, c.verified, c.looked, c.used = savedYes, began, began, r.now()
	c.mu.Unlock()
	if err := c.catchUp(req.Context(), f); err != nil {
		c.discard(ErrEvicted)
		return err
	}
	if err := c.publish(req.Context(), began); err != nil {
		return err
	}
	if len(f.more) > 1 {
		c.sawStream(req.Context(), began, f.more[1])
	}
	return nil
}

// catchUp replays what the client has set on the session.
func (c *hostedCopy) catchUp(ctx context.Context, f *found) error {
	if len(f.more) == 0 {
		keys := []string{c.r.keys.state(c.digest)}
		if c.r.hints.pub != nil {
			keys = append(keys, c.r.keys.stream(c.digest))
		}
		values, err := c.r.store.get(ctx, keys...)
		if err != nil {
			return unsure("the session's state cannot be read", err)
		}
		f.more = values
	}
	if f.more[0] == nil {
		return nil
	}
	c.stateMu.Lock()
	defer c.unlockState()
	c.learn(f.more[0])
	c.replayState()
	return nil
}

// initialize replays the handshake.
func (c *hostedCopy) initialize(rec *record, greets bool) error {
	req := c.origin.request(rec.Path)
	body := append([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":`), rec.Params...)
	setBody(req, append(body, '}'))
	w, err := c.serveInitialize(req, &post{internal: true})
	switch {
	case errors.Is(err, errForeignServer), errors.Is(err, errTaken):
		return err
	case err != nil:
		return unsure("replay failed", err)
	case w.status != http.StatusOK || c.session == nil || c.session.InitializeParams() == nil:
		return unsure("replay refused", fmt.Errorf("sessionshare: the SDK answered the recorded initialize with %d", w.status))
	case c.protocol != rec.Protocol:
		return c.r.lags.doubt(c.id, c.r.now(), "the protocol version negotiated here is another")
	}
	if !greets {
		if w := c.deliver([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), true); w.status != http.StatusAccepted {
			return unsure("replay refused", fmt.Errorf("sessionshare: the SDK answered the replayed initialized with %d", w.status))
		}
	}
	return nil
}

// publish makes a resumed copy serve. What is known of the session is as old as
// began: if that is too old by now, it is read again first. The record is
// touched.
func (c *hostedCopy) publish(ctx context.Context, began time.Time) error {
	if since(c.r.now(), began) > c.r.recheckInterval() {
		began = c.r.now()
		if _, err := c.look(ctx, lookAll); errors.Is(err, ErrGone) {
			c.discard(ErrClosed)
			return ErrGone
		} else if err != nil {
			c.discard(ErrEvicted)
			return unsure("close marks cannot be read", err)
		}
		c.mu.Lock()
		c.verified, c.looked = began, began
		c.mu.Unlock()
	}
	if err := c.touch(ctx, true); err != nil {
		return err // it has ended
	}
	return c.serve()
}

// serve puts the copy among those that serve, unless the session or the replica
// was closed meanwhile: either we see that, or who closes sees the copy.
func (c *hostedCopy) serve() error {
	r := c.r
	c.mu.Lock()
	c.origin.header = nil
	c.mu.Unlock()
	r.copies.Store(c.id, c)
	r.digests.store(c.digest, c)
	switch {
	case r.closures.session(c.id), r.closures.endpoint(c.rec.endpoint()):
		c.discard(ErrClosed)
		return ErrGone
	case r.stopping.Load():
		c.discard(ErrShutdown)
		return errStopping
	}
	if c.resumed {
		r.stats.resumed.Add(1)
	} else {
		r.stats.opened.Add(1)
	}
	r.lags.clear(c.id)
	r.needSweeper()
	if r.hints.missedOne(c.digest) && c.resumed {
		c.lookSoon()
	}
	return nil
}
