package sessionshare

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// serveOpen serves a POST without session. The SDK decides what it is: if a
// session comes out of it, it is recorded before anything is answered, so that
// the client's next request can land anywhere.
func (h *handler) serveOpen(w http.ResponseWriter, req *http.Request, b *body) {
	answer, err := h.open(req, b)
	if err != nil {
		if doubtful(err) && !errors.Is(err, errStopping) {
			h.r.log.Warn("sessionshare: not opened", "error", err)
		}
		h.r.answer(w, req, err)
		return
	}
	answer.sendTo(w)
}

// open makes a copy, lets the SDK serve req on it and returns the SDK's answer.
func (h *handler) open(req *http.Request, b *body) (*recorded, error) {
	r := h.r
	if r.stopping.Load() {
		return nil, errStopping
	}
	rec, err := h.newRecord(req)
	if err != nil {
		return nil, err
	}
	if b.load().single("initialize") && len(b.first.params) > maxParams {
		return nil, errParamsLarge
	}
	type result struct {
		answer *recorded
		err    error
	}
	done := make(chan result, 1)
	var left atomic.Bool // nobody waits any more
	r.owned.run(func() {
		var res result
		err := creation(func() (err error) {
			res.answer, err = h.openCopy(req, b, rec, &left)
			return err
		})
		done <- result{res.answer, err}
	})
	bound := time.NewTimer(r.creationBound())
	defer bound.Stop()
	select {
	case res := <-done:
		return res.answer, res.err
	case <-req.Context().Done():
		left.Store(true)
		return nil, req.Context().Err()
	case <-bound.C:
		left.Store(true)
		return nil, unsure("open takes too long", errSlow)
	}
}

// newRecord asks the host what a session that req opens is bound to.
func (h *handler) newRecord(req *http.Request) (*record, error) {
	r := h.r
	principal, err := r.opts.Principal(req)
	if err != nil {
		return nil, callbackError("Principal", err)
	}
	endpoint, err := r.opts.Endpoint(req)
	if err != nil {
		return nil, callbackError("Endpoint", err)
	}
	if strings.ContainsRune(endpoint.Name, 0) {
		return nil, errNotText
	}
	r.serves(endpoint)
	if err := r.openable(req.Context(), endpoint); err != nil {
		return nil, err
	}
	rec := &record{
		Version: recordVersion, Principal: principal, Endpoint: endpoint.Name, Incarn: endpoint.Incarnation,
		Path: req.URL.Path, Headers: cloneHeader(req.Header, r.opts.OpenHeaders), IdleMS: r.opts.IdleTimeout.Milliseconds(),
		Key: make([]byte, recordKey),
	}
	_, _ = rand.Read(rec.Key) // never fails
	if r.opts.Scope != nil {
		scope, err := r.opts.Scope(req, rec.binding())
		if err != nil {
			return nil, callbackError("Scope", err)
		}
		if len(scope) > maxScope {
			return nil, errScopeLarge
		}
		rec.Scope = bytes.Clone(scope)
	}
	return rec, nil
}

// openable refuses to open sessions on an incarnation that is known to be closed:
// by this replica, or by one that was faster. If the store cannot be read, the
// first recheck finds out.
func (r *Replica) openable(ctx context.Context, e Endpoint) error {
	if e.Incarnation == "" {
		return nil
	}
	if r.closures.endpoint(e) || r.lags.passed(e) {
		return ErrGone
	}
	if r.store == nil {
		return nil
	}
	values, err := r.store.get(ctx, r.keys.endpoint(e))
	if err == nil && values[0] != nil {
		return ErrGone
	}
	return nil
}

// openCopy makes a copy and lets the SDK serve req on it. If a session came out,
// it is recorded and published; if not, nothing is left of it.
func (h *handler) openCopy(req *http.Request, b *body, rec *record, left *atomic.Bool) (*recorded, error) {
	r := h.r
	began := r.now()
	id := r.opts.NewSessionID()
	if checkNewSessionID(id) != nil {
		return nil, errBadID
	}
	mine := *rec
	c, err := h.newCopy(id, &mine, false, req)
	if err != nil {
		return nil, unsure("open failed", err)
	}
	answer, err := c.serveClient(req, b)
	if err != nil {
		c.discard(ErrClosed)
		return nil, err
	}
	if answer.header.Get(headerSessionID) == "" || c.session == nil || c.session.InitializeParams() == nil {
		c.discard(ErrClosed)
		return answer, nil
	}
	mine.Protocol, mine.Params = c.protocol, bytes.Clone(b.first.params)
	err = h.recordable(b, &mine)
	if err == nil && left.Load() {
		err = context.Canceled
	}
	if err != nil {
		c.discard(ErrClosed)
		return nil, err
	}
	c.used, c.verified, c.looked = r.now(), began, began
	c.share(req.Context())
	if err := c.serve(); err != nil {
		return nil, err
	}
	return answer, nil
}

// serveClient lets the SDK serve the client's own request on a copy that has no
// SDK session yet.
func (c *hostedCopy) serveClient(req *http.Request, b *body) (*recorded, error) {
	own := req.Clone(c.origin.ctx)
	own.Body = b.again()
	return c.serveInitialize(own, &post{})
}

// recordable checks that other replicas can resume a session from its record.
func (h *handler) recordable(b *body, rec *record) error {
	if !b.single("initialize") || b.trailing {
		return errNotAlone
	}
	switch _, err := rec.encode(); {
	case errors.Is(err, errRecordTooLarge):
		return errRecordLarge
	case err != nil:
		return errNotText
	}
	return nil
}

// share stores the record of a session that was just opened. If the store does
// not take it, the session is served here alone, and the sweeper tries again.
func (c *hostedCopy) share(ctx context.Context) {
	if c.r.store == nil {
		return
	}
	began := c.r.now()
	value, err := c.rec.encode()
	if err == nil {
		c.saved = savedMaybe
		err = c.r.store.put(ctx, c.r.keys.session(c.digest), value, c.rec.idle())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.touched = began
	if err != nil {
		c.r.log.Warn("sessionshare: the store did not take a new session, serving it here alone for now", "session", c.Digest(), "error", err)
		c.saveLater()
		return
	}
	c.saved = savedYes
}
