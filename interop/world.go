package interop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/internal/roundrobin"
)

// Replicas is how many there are.
const Replicas = 3

// A Variant is how a World is built.
type Variant struct {
	Bare      bool // the SDK's own handler, nothing shared
	Hints     bool // the store can do all a MemoryStore can, else Get, Put, Delete
	KeepAlive bool // the balancer keeps connections, else one for each request
	JSON      bool // StreamableHTTPOptions.JSONResponse
	Events    bool // StreamableHTTPOptions.EventStore, one for all replicas
}

// String names the variant, for subtests.
func (v Variant) String() string {
	pick := func(is bool, yes, no string) string {
		if is {
			return yes
		}
		return no
	}
	name := pick(v.Hints, "hints", "basic") + "-" + pick(v.JSON, "json", "sse") + "-" + pick(v.KeepAlive, "kept", "new")
	if v.Bare {
		name = pick(v.JSON, "bare-json", "bare-sse")
	}
	return name + pick(v.Events, "-events", "")
}

// A Member is one replica of a World, until it is killed.
type Member struct {
	Server  *mcp.Server
	Replica *sessionshare.Replica // nil in a bare world
}

// A World is three replicas, a balancer and a Tap, all on loopback.
type World struct {
	Variant Variant
	Cluster *roundrobin.Cluster
	Tap     *Tap
	Journal *Journal

	store  sessionshare.SharedStore
	events mcp.EventStore

	mu      sync.Mutex // guards members
	members [Replicas]*Member
}

// basicStore has the three methods of a SharedStore and no other ability.
type basicStore struct{ sessionshare.SharedStore }

// basicRecheck is how often replicas look at a basicStore: more often than they do
// by default, so that steps take less time.
const basicRecheck = 300 * time.Millisecond

// Start builds a World. The caller must Close it.
func Start(v Variant) (*World, error) {
	w := &World{Variant: v, Journal: &Journal{}, store: sessionshare.NewMemoryStore()}
	if !v.Hints {
		w.store = basicStore{w.store}
	}
	if v.Events {
		w.events = mcp.NewMemoryEventStore(nil)
	}
	var err error
	w.Cluster, err = roundrobin.Start(Replicas, roundrobin.Options{KeepAlive: v.KeepAlive}, w.newNode)
	if err != nil {
		return nil, err
	}
	if w.Tap, err = startTap(w.Cluster.Proxy); err != nil {
		w.Cluster.Close()
		return nil, err
	}
	return w, nil
}

// Close ends everything.
func (w *World) Close() {
	w.Tap.Close()
	w.Cluster.Close()
}

// URL is where clients connect to.
func (w *World) URL() string { return w.Tap.URL + "/mcp" }

// Member returns what runs as replica i.
func (w *World) Member(i int) *Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.members[i]
}

// newNode makes replica i: for the cluster, which also does so after a Kill.
func (w *World) newNode(i int) (roundrobin.Node, error) {
	m := &Member{}
	opts := &mcp.StreamableHTTPOptions{JSONResponse: w.Variant.JSON, EventStore: w.events}
	node := roundrobin.Node{}
	if w.Variant.Bare {
		m.Server = newServer(i, w.Journal, nil)
		node.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return m.Server }, opts)
	} else {
		o := sessionshare.Options{Store: w.store}
		if !w.Variant.Hints {
			o.RecheckInterval = basicRecheck
		}
		r, err := sessionshare.New(o)
		if err != nil {
			return node, err
		}
		m.Replica, m.Server = r, newServer(i, w.Journal, r.GetSessionID)
		node.Handler = r.Handler(func(*http.Request) *mcp.Server { return m.Server }, opts)
		node.Stop = func(ctx context.Context) error {
			// A context that is over means a crash; what Shutdown says of it is no news.
			if err := r.Shutdown(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
	}
	node.Handler = named(i, node.Handler)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members[i] = m
	return node, nil
}

// headerReplica says which replica has answered.
const headerReplica = "X-Replica"

func named(i int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set(headerReplica, strconv.Itoa(i))
		next.ServeHTTP(w, req)
	})
}

// Session returns the copy of a session on replica i, or nil.
func (w *World) Session(i int, id string) *mcp.ServerSession {
	for s := range w.Member(i).Server.Sessions() {
		if s.ID() == id {
			return s
		}
	}
	return nil
}

// A Journal is what handlers on all replicas have noted, in order.
type Journal struct {
	mu    sync.Mutex // guards lines
	lines []string
}

// Add notes a line.
func (j *Journal) Add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// Has reports whether a line was noted.
func (j *Journal) Has(line string) bool { return j.Count(line) > 0 }

// Count returns how often a line was noted.
func (j *Journal) Count(line string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if l == line {
			n++
		}
	}
	return n
}

// Eventually waits until f reports true, and returns false if it does not in
// time.
func Eventually(ctx context.Context, in time.Duration, f func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, in)
	defer cancel()
	for !f() {
		select {
		case <-ctx.Done():
			return f()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}
