package sessionshare

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A handler is what Replica.Handler returns.
type handler struct {
	r         *Replica
	getServer func(*http.Request) *mcp.Server
	copyOpts  mcp.StreamableHTTPOptions  // of the SDK handler of every copy
	blank     *mcp.StreamableHTTPHandler // never has a session: says what the SDK thinks of a request
	limit     int64                      // bytes of a body that are looked at
	unlimited bool                       // and a longer one is served too
	events    mcp.EventStore             // of the host; nil without one
}

// Handler takes the place of mcp.NewStreamableHTTPHandler(getServer, opts), and
// all of opts holds, but SessionTimeout, whose place Options.IdleTimeout takes. A
// stateless handler is the SDK's own.
//
// getServer, the factory, runs once per copy, not with every request. It sees only
// what other replicas know too: the path as it was at open, the headers named in
// Options.OpenHeaders as they were at open, and a context with the [Session].
// Returning nil is a 503.
//
// Every server it returns has this Replica's GetSessionID in its ServerOptions.
// Authentication, limits and http.TimeoutHandler go around the handler.
func (r *Replica) Handler(getServer func(*http.Request) *mcp.Server, opts *mcp.StreamableHTTPOptions) http.Handler {
	if opts != nil && opts.Stateless {
		return mcp.NewStreamableHTTPHandler(getServer, opts)
	}
	h := &handler{r: r, getServer: getServer}
	if opts != nil {
		h.copyOpts = *opts
	}
	if h.copyOpts.SessionTimeout != 0 {
		r.log.Warn("sessionshare: StreamableHTTPOptions.SessionTimeout is ignored, Options.IdleTimeout holds")
		h.copyOpts.SessionTimeout = 0
	}
	if h.copyOpts.EventStore != nil {
		h.events = h.copyOpts.EventStore
		r.eventsMu.Lock()
		r.events = append(r.events, h.events)
		r.eventsMu.Unlock()
	}
	h.blank = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return nil }, &h.copyOpts)
	h.limit, h.unlimited = bodyLimit(&h.copyOpts)
	h.copyOpts.MaxRequestBodyBytes = -1 // see body.beyond
	return h
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.r.hints.start()
	switch req.Method {
	case http.MethodGet, http.MethodPost, http.MethodDelete:
	default:
		h.blank.ServeHTTP(w, req) // 405; resumes nothing
		return
	}
	ids := req.Header[headerSessionID]
	b := &body{req: req, h: h}
	switch {
	case len(ids) > 1:
		h.r.answer(w, req, errManyIDs)
	case len(ids) == 1 && ids[0] != "":
		h.serveSession(w, req, b, ids[0])
		b.release()
	case req.Method == http.MethodPost:
		h.serveOpen(w, req, b)
	default:
		h.blank.ServeHTTP(w, req)
	}
}

// serveSession serves a request of a session. What no client sends again, if it
// cannot be served just now, is held and tried again.
func (h *handler) serveSession(w http.ResponseWriter, req *http.Request, b *body, id string) {
	var held hold
	defer held.end()
	for {
		err := h.trySession(w, req, b, id)
		switch {
		case err == nil:
			return
		case errors.Is(err, ErrGone) && req.Method == http.MethodPost && b.load().single("initialize"):
			// A client that begins anew and forgot to drop its ID.
			req = req.Clone(req.Context())
			req.Header.Del(headerSessionID)
			h.serveOpen(w, req, b)
			return
		case doubtful(err) && h.patient(req, b) && held.wait(req.Context(), h.r, len(b.data)):
			continue
		}
		if doubtful(err) {
			h.r.log.Warn("sessionshare: not served", "session", digestOf(id).short(), "method", req.Method, "error", err)
		}
		h.r.answer(w, req, err)
		return
	}
}

// patient reports whether a request is lost for good if it fails: clients do not
// send answers, notifications and first GETs again.
func (h *handler) patient(req *http.Request, b *body) bool {
	if h.r.stopping.Load() {
		return false
	}
	return req.Method == http.MethodGet || req.Method == http.MethodPost && !b.load().calls()
}

// maxTries is how often a request is tried whose copy ends under its hands.
const maxTries = 4

// trySession serves a request, or returns why it could not, with nothing written.
func (h *handler) trySession(w http.ResponseWriter, req *http.Request, b *body, id string) error {
	if !validSessionID(id) {
		return ErrGone
	}
	principal, err := h.r.opts.Principal(req)
	if err != nil {
		return callbackError("Principal", err)
	}
	endpoint, err := h.r.opts.Endpoint(req)
	if err != nil {
		return callbackError("Endpoint", err)
	}
	if req.Method == http.MethodDelete {
		return h.serveDelete(w, req, id, principal, endpoint)
	}
	for range maxTries {
		c, err := h.admit(req, b, id, principal, endpoint)
		if err != nil {
			return err
		}
		if c == nil {
			continue // it was made, and has ended already
		}
		if err := h.serveOn(c, w, req, b); !errors.Is(err, errCopyGone) {
			return err
		}
		c.end(ErrEvicted) // what the SDK ends by itself ends no session
	}
	return unsure("copies of this session end at once", ErrEvicted)
}

// serveOn serves an admitted request on c, or returns why it could not, with
// nothing written.
func (h *handler) serveOn(c *hostedCopy, w http.ResponseWriter, req *http.Request, b *body) error {
	defer c.leave()
	if req.Method == http.MethodGet {
		if !h.serveGET(c, w, req) {
			return errCopyGone
		}
		return nil
	}
	b.load()
	if h.r.stopping.Load() && b.calls() {
		return errStopping
	}
	return h.servePOST(c, w, req, b)
}

// admit takes a use of the copy that serves the session, making it if need be.
// It returns neither copy nor error if the copy has ended meanwhile.
func (h *handler) admit(req *http.Request, b *body, id, principal string, endpoint Endpoint) (*hostedCopy, error) {
	if c, err := h.r.use(req, id, principal, endpoint); c != nil || err != nil {
		return c, err
	}
	found, err := h.r.find(req, id, principal, endpoint)
	if err != nil {
		return nil, err
	}
	greets := req.Method == http.MethodPost && b.load().single("notifications/initialized")
	if err := h.resume(req, id, found, greets); err != nil {
		return nil, err
	}
	return h.r.use(req, id, principal, endpoint)
}

// use takes a use of the copy that serves the session here, after the look that
// is due. It returns neither copy nor error if there is none.
func (r *Replica) use(req *http.Request, id, principal string, endpoint Endpoint) (*hostedCopy, error) {
	c, ok := r.lookup(id)
	if !ok {
		return nil, nil
	}
	if err := r.bound(c, principal, endpoint); err != nil {
		return nil, err
	}
	look, ok := c.enter(r.now())
	if !ok {
		r.copies.CompareAndDelete(id, c) // it is ending: as if not hosted
		return nil, nil
	}
	switch look {
	case lookMarks, lookAll:
		if err := c.recheck(req.Context(), look, true); err != nil {
			c.leave()
			return nil, err
		}
	case lookWait:
		if !c.awaitLook(req.Context()) {
			c.leave()
			return nil, nil
		}
	}
	return c, nil
}

// bound compares who sent a request, and what it addresses, with the binding of
// a copy.
func (r *Replica) bound(c *hostedCopy, principal string, endpoint Endpoint) error {
	rec := c.rec
	if rec.Principal != principal || rec.Endpoint != endpoint.Name {
		return ErrGone
	}
	if rec.Incarn != endpoint.Incarnation {
		if r.lags.passed(endpoint) {
			return unsure("the endpoint", errLate)
		}
		// This replica has moved on to another incarnation: endpoints never go back.
		r.serves(endpoint)
		c.end(ErrClosed)
		return ErrGone
	}
	return nil
}

// serves notes what this replica serves under a name now. If it has moved to
// another incarnation, the copies of the one before end.
func (r *Replica) serves(e Endpoint) {
	if !r.lags.serves(e) {
		return
	}
	r.hosted(func(c *hostedCopy) bool {
		if c.rec.Endpoint == e.Name && c.rec.Incarn != e.Incarnation {
			c.end(ErrClosed)
		}
		return true
	})
}

// serveDelete ends a session: hosted here or not, without resuming it and without
// waiting for its calls.
func (h *handler) serveDelete(w http.ResponseWriter, req *http.Request, id, principal string, endpoint Endpoint) error {
	r := h.r
	if verdict := h.verdict(req); verdict != nil {
		verdict.sendTo(w)
		return nil
	}
	var rec *record
	if c, ok := r.lookup(id); ok {
		if err := r.bound(c, principal, endpoint); err != nil {
			return err
		}
		rec = c.rec
	} else {
		found, err := r.find(req, id, principal, endpoint)
		if err != nil {
			return err
		}
		rec = found.rec
	}
	if err := r.closeSession(req.Context(), id, rec, closedByHost); err != nil {
		return unsure("the session is closed here only, so far", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// verdict returns what the SDK says of a request of whatever session, nil if it
// has no objections.
func (h *handler) verdict(req *http.Request) *recorded {
	w := newRecorded()
	h.blank.ServeHTTP(w, req.Clone(req.Context()))
	if w.status == http.StatusNotFound {
		return nil
	}
	return w
}

// pathEndpoint is the default of Options.Endpoint: the path as the client sent
// it, before any StripPrefix.
func pathEndpoint(req *http.Request) (Endpoint, error) {
	path := req.URL.Path
	if req.RequestURI != "" && req.RequestURI != path {
		if u, err := url.ParseRequestURI(req.RequestURI); err == nil {
			path = u.Path
		}
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return Endpoint{Name: path}, nil
}
