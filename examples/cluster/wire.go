package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A wire is the HTTP of a client: it says who sends, and notes who answered.
type wire struct {
	user   string
	pinned atomic.Pointer[string] // host that gets all requests, past the proxy

	mu     sync.Mutex // guards all below
	hops   []hop
	stream string // the replica that holds the client's open GET; "" if there is none
}

// A hop is one request and the replica that answered it.
type hop struct{ what, replica string }

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	what := req.Method
	if what == http.MethodPost {
		what = "answer" // to a question of the server, unless it has a method
	}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		var message struct{ Method string }
		if json.Unmarshal(body, &message) == nil && message.Method != "" {
			what = message.Method
		}
	}
	req = req.Clone(req.Context())
	req.SetBasicAuth(w.user, "")
	if host := w.pinned.Load(); host != nil {
		req.URL.Host = *host
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	h := hop{what, resp.Header.Get(replicaHeader)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hops = append(w.hops, h)
	if what == http.MethodGet && resp.StatusCode == http.StatusOK {
		w.stream = h.replica
		resp.Body = &stream{resp.Body, func() { w.ended(h.replica) }}
	}
	return resp, nil
}

// A stream tells when it is at its end.
type stream struct {
	io.ReadCloser
	ended func()
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil {
		s.ended()
	}
	return n, err
}

func (w *wire) ended(replica string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stream == replica {
		w.stream = ""
	}
}

// holder is the replica that holds the client's stream, once there is one.
func (w *wire) holder(ctx context.Context) (string, error) {
	for {
		w.mu.Lock()
		replica := w.stream
		w.mu.Unlock()
		if replica != "" {
			return replica, nil
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return "", errors.New("expected the client to open its stream again, and it did not")
		}
	}
}

// trail returns the requests so far, in the order of their answers.
func (w *wire) trail() []hop {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]hop(nil), w.hops...)
}

// servedBy returns the replica that answered the last request of a kind.
func (w *wire) servedBy(what string) string {
	replica, _ := w.servedSince(0, what)
	return replica
}

// servedSince is servedBy for requests after the first n of the trail.
func (w *wire) servedSince(n int, what string) (replica string, ok bool) {
	for _, h := range slices.Backward(w.trail()[n:]) {
		if h.what == what {
			return h.replica, true
		}
	}
	return "", false
}

// awaitSince waits for the answer to such a request: what it brings about may be
// there first.
func (w *wire) awaitSince(ctx context.Context, n int, what string) (replica string, err error) {
	for {
		if replica, ok := w.servedSince(n, what); ok {
			return replica, nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return "", fmt.Errorf("expected the client to send its %s, and it did not", what)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
