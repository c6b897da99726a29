// Package roundrobin is a load balancer of the plainest kind, and a cluster to
// put behind it: what examples and tests show sessions on that hop from replica
// to replica with every request.
//
// It is strict on purpose. Balancers that keep a client on one replica hide what
// sessionshare is for.
package roundrobin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultMaxBuffered is the default of Options.MaxBuffered.
	DefaultMaxBuffered = 1 << 20

	dialTimeout = 2 * time.Second
	// linger is for how long a POST on a kept-alive connection outlives its client.
	linger = time.Second
)

// Options configures a Proxy; zero values are fine.
type Options struct {
	// KeepAlive keeps connections to the backends for further requests. If it is
	// false, every request comes to its backend on a connection of its own.
	KeepAlive bool

	// MaxBuffered is up to which size a body is read before it is sent on, so that
	// it can be sent to another backend if the first is dead. Longer ones are
	// streamed, and fail with their backend. Zero means DefaultMaxBuffered.
	MaxBuffered int64

	// Logger gets requests that failed and backends that come and go. Nil discards.
	Logger *slog.Logger
}

// A Proxy sends each request to the next of its backends. The client's Host is
// kept, answers are flushed as they come, so that streams stream. It may be used
// concurrently.
type Proxy struct {
	opts      Options
	transport *http.Transport
	reverse   *httputil.ReverseProxy

	mu       sync.Mutex // guards all below
	backends []string   // host:port
	next     int        // index of the backend whose turn it is; may be out of range
}

// New returns a Proxy of backends, which are given as host:port.
func New(opts Options, backends ...string) *Proxy {
	opts.MaxBuffered = cmp.Or(opts.MaxBuffered, DefaultMaxBuffered)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{opts: opts, backends: slices.Clone(backends)}
	p.transport = &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		DisableKeepAlives:   !opts.KeepAlive,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // what the client asked for, nothing else
	}
	p.reverse = &httputil.ReverseProxy{
		// The host is filled in by RoundTrip, which may try several.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme = "http"
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		Transport:     (*balance)(p),
		FlushInterval: -1,
		ErrorHandler:  p.failed,
		ErrorLog:      slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
	return p
}

// Add adds a backend, host:port. Adding one that is there changes nothing.
func (p *Proxy) Add(backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.backends, backend) {
		p.backends = append(p.backends, backend)
		p.opts.Logger.Info("roundrobin: backend added", "backend", backend)
	}
}

// Remove takes a backend out of the rotation. Requests it has go on.
func (p *Proxy) Remove(backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.backends, backend)
	if i < 0 {
		return
	}
	p.backends = slices.Delete(p.backends, i, i+1)
	if i < p.next {
		p.next-- // the turn stays with whom it was
	}
	p.opts.Logger.Info("roundrobin: backend removed", "backend", backend)
}

// Backends returns those in rotation.
func (p *Proxy) Backends() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.backends)
}

// Close drops idle connections to backends.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// turn returns the backend whose turn it is, but for those that were tried.
func (p *Proxy) turn(tried []string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.backends {
		if p.next >= len(p.backends) {
			p.next = 0
		}
		b := p.backends[p.next]
		p.next++
		if !slices.Contains(tried, b) {
			return b, true
		}
	}
	return "", false
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	req, err := p.buffer(req)
	if err != nil {
		http.Error(w, "roundrobin: the body cannot be read", http.StatusBadRequest)
		return
	}
	p.reverse.ServeHTTP(w, req)
}

// buffer returns req with a body that can be sent more than once (GetBody), if it
// is short enough.
func (p *Proxy) buffer(req *http.Request) (*http.Request, error) {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength > p.opts.MaxBuffered {
		return req, nil
	}
	data, err := io.ReadAll(io.LimitReader(req.Body, p.opts.MaxBuffered+1))
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	if int64(len(data)) > p.opts.MaxBuffered {
		out.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), req.Body), req.Body}
		return out, nil
	}
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	out.Body, _ = out.GetBody()
	out.ContentLength = int64(len(data))
	out.TransferEncoding = nil
	return out, nil
}

var errNoBackend = errors.New("roundrobin: no backend")

// failed answers a request that no backend answered.
func (p *Proxy) failed(w http.ResponseWriter, req *http.Request, err error) {
	if req.Context().Err() != nil {
		return // nobody is there to be told
	}
	p.opts.Logger.Warn("roundrobin: request failed", "method", req.Method, "error", err)
	status := http.StatusBadGateway
	if errors.Is(err, errNoBackend) {
		status = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), status)
}

// balance is the Proxy as the transport of its ReverseProxy: it chooses.
type balance Proxy

// RoundTrip sends req to the backend whose turn it is. A backend that cannot be
// dialled has seen nothing of it, so that the next one is tried, and so is a GET
// that got no answer, which changes nothing. After any other failure the request
// may have been served, and sending it again is the client's decision.
func (b *balance) RoundTrip(req *http.Request) (*http.Response, error) {
	p := (*Proxy)(b)
	var tried []string
	last := error(errNoBackend)
	for {
		backend, ok := p.turn(tried)
		if !ok {
			return nil, last
		}
		tried = append(tried, backend)
		resp, err := p.send(req, backend)
		if err == nil {
			return resp, nil
		}
		last = fmt.Errorf("roundrobin: backend %s: %w", backend, err)
		repeatable := isDialError(err) || req.Method == http.MethodGet
		if !repeatable || !replayable(req) || req.Context().Err() != nil {
			return nil, last
		}
		p.opts.Logger.Info("roundrobin: backend does not answer, trying the next", "backend", backend)
	}
}

// send sends one try of req to backend.
func (p *Proxy) send(req *http.Request, backend string) (*http.Response, error) {
	ctx, settled := req.Context(), func() {}
	if p.opts.KeepAlive && req.Method == http.MethodPost && req.GetBody != nil {
		ctx, settled = outlive(ctx)
	}
	try := req.Clone(ctx)
	try.URL.Host = backend
	if req.GetBody != nil {
		try.Body, _ = req.GetBody()
	}
	resp, err := p.transport.RoundTrip(try)
	if err != nil {
		settled()
		return nil, err
	}
	resp.Body = &body{resp.Body, settled}
	return resp, nil
}

// outlive returns a context that ends a while after ctx. A client that hangs up
// just as its answer arrives would otherwise fail somebody else's request: the
// HTTP client of Go 1.26 cancels what uses the connection by then. settled says
// that the answer is complete; nothing is cancelled any more.
func outlive(ctx context.Context) (later context.Context, settled func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(linger):
			cancel()
		}
	})
	return later, sync.OnceFunc(func() { close(done) })
}

// body tells when it is closed.
type body struct {
	io.ReadCloser
	closed func()
}

func (b *body) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

func replayable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
