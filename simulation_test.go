package sessionshare

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The times of the simulation are short, so that in one run everything happens.
const (
	simIdle         = 10 * time.Minute
	simEvict        = 2 * time.Minute
	simTouch        = 20 * time.Second
	simUnverified   = 3 * time.Minute
	simStoreTimeout = 2 * time.Second

	simReplicas = 3
	simClients  = 20
	simSteps    = 60
)

// TestSimulation runs replicas and clients through random steps under every fault
// the design knows, and checks all seven rules of the store protocol after each
// step against a model. A failure names its seed:
//
//	SESSIONSHARE_SIM_SEED=17 go test -run TestSimulation .
//
// SESSIONSHARE_SIM_SEEDS says how many seeds are tried.
func TestSimulation(t *testing.T) {
	first, count := uint64(1), uint64(200)
	if testing.Short() {
		count = 25
	}
	if v, err := strconv.ParseUint(os.Getenv("SESSIONSHARE_SIM_SEEDS"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("SESSIONSHARE_SIM_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T) { newSimulation(t, seed).run() })
		})
	}
}

// A simulation is one seed's run.
type simulation struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand // of the steps
	bad  *simRand   // of the faults
	c    *cluster
	zero time.Time

	plain  bool // the store has the three methods only
	hints  bool // or it has all, and carries hints
	always bool // every request reads

	nodes   []*simNode
	clients []*simClient
	flights []*simFlight // under way; of the stepping goroutine alone

	mu               sync.Mutex // guards all below, and simSession
	sessions         []*simSession
	byDigest         map[string]*simSession
	endpointsClosing map[string]bool // by key
	lateUntil        time.Time       // when no failed write can come any more
	trace            []string
	violations       []string
}

// A simNode is a replica that can be restarted.
type simNode struct {
	*node
	sim   *simulation
	index int
	life  int // how often it was started
	incs  [2]atomic.Int64

	revoked sync.Map    // users whose rights are gone; one for all replicas
	doubts  atomic.Bool // Check cannot tell

	fault    simFault  // that holds, if any
	healthy  time.Time // since when no fault holds; zero: one does
	jumped   time.Time // when its clock jumped last
	moved    time.Time // when an endpoint moved on last
	closedAt map[*simSession]time.Time
}

// A simClient has one session at a time.
type simClient struct {
	name    string
	renamed int // how often its rights were revoked
	session *simSession
}

func (c *simClient) user() string { return fmt.Sprint(c.name, ".", c.renamed) }

func newSimulation(t *testing.T, seed uint64) *simulation {
	sim := &simulation{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), bad: &simRand{rng: rand.New(rand.NewPCG(seed, 2))},
		zero: time.Now(), byDigest: map[string]*simSession{}, endpointsClosing: map[string]bool{},
	}
	kind := sim.rng.IntN(4)
	sim.plain, sim.hints, sim.always = kind == 0, kind == 1, sim.rng.IntN(8) == 0
	sim.c = newCluster(t, 0)
	for i := range simReplicas {
		n := &simNode{sim: sim, index: i}
		sim.start(n)
		sim.nodes = append(sim.nodes, n)
	}
	for i := range simClients {
		sim.clients = append(sim.clients, &simClient{name: fmt.Sprint("user", i)})
	}
	return sim
}

// recheck is for how long a copy may go on after a close.
func (sim *simulation) recheck() time.Duration {
	if sim.always {
		return 0
	}
	return testRecheck
}

// start starts a replica, for the first time or again.
func (sim *simulation) start(n *simNode) {
	n.life++
	n.closedAt = map[*simSession]time.Time{}
	n.healthy, n.jumped, n.moved = time.Now(), time.Now(), time.Now()
	n.doubts.Store(false)
	n.node = sim.c.add(func(cfg *nodeConfig) {
		cfg.n.view.set(simHealthy(sim.bad))
		store := simStore{cfg.n.view, n, &simSights{missing: map[string]time.Time{}}}
		switch {
		case sim.plain:
			cfg.opts.Store = plainStore{store}
		case sim.hints:
			cfg.opts.Store = simHintingStore{store}
		default:
			cfg.opts.Store = store
		}
		cfg.opts.RecheckInterval = testRecheck
		if sim.always {
			cfg.opts.RecheckInterval = -1
		}
		cfg.opts.IdleTimeout, cfg.opts.EvictAfter, cfg.opts.TouchInterval = simIdle, simEvict, simTouch
		cfg.opts.UnverifiedLimit, cfg.opts.StoreTimeout = simUnverified, simStoreTimeout
		cfg.opts.Endpoint = func(req *http.Request) (Endpoint, error) { return n.serves(req.Header.Get("X-Endpoint")), nil }
		cfg.opts.Check, cfg.opts.Logger = n.check, nil
		cfg.factory = simServer
	})
}

// serves is what the replica serves under a name now.
func (n *simNode) serves(name string) Endpoint {
	return Endpoint{name, fmt.Sprintf("%03d", n.incs[simEndpoint(name)].Load())}
}

func simEndpoint(name string) int { return strings.Index("/a/b", name) / 2 }

func (n *simNode) check(_ context.Context, b Binding) error {
	if n.doubts.Load() {
		return errStoreDown
	}
	if _, gone := n.sim.nodes[0].revoked.Load(b.Principal); gone {
		return ErrGone
	}
	return nil
}

// hosts reports whether the replica serves the session now.
func (n *simNode) hosts(s *simSession) bool {
	_, ok := n.lookup(s.id)
	return ok
}

// simServer has one tool, which runs for as long as it is told to.
func simServer(_ *http.Request, opts *mcp.ServerOptions) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "sim", Version: "1"}, opts)
	s.AddTool(&mcp.Tool{Name: "run", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Seconds int }
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(args.Seconds) * time.Second):
			return text("done"), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	return s
}

// run makes the steps, lets everything heal, and checks what must be true then.
func (sim *simulation) run() {
	defer sim.hangUpAll()
	for range simSteps {
		sim.step()
		sim.settle()
	}
	sim.heal(sim.nodes)
	sim.catchUp()
	for range 4 {
		sim.pass(time.Minute)
		sim.settle()
	}
	for _, s := range sim.sessions {
		for _, n := range sim.nodes {
			sim.send("call", n, s, callBody("tools/list", "{}"))
		}
		sim.settle()
	}
	sim.pass(simAnswerBound)
	sim.settle()
}

// settle waits until everything that can happen now has happened, and checks it.
func (sim *simulation) settle() {
	synctest.Wait()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.look()
	now := time.Now()
	under := sim.flights[:0]
	for _, f := range sim.flights {
		if !f.until.IsZero() && !now.Before(f.until) && !f.hungUp {
			f.hungUp = true
			f.p.cancel()
		}
		select {
		case <-f.p.done:
			sim.land(f)
		default:
			under = append(under, f)
		}
	}
	clear(sim.flights[len(under):])
	sim.flights = under
	sim.watch()
	if len(sim.violations) > 0 {
		sim.t.Fatalf("seed %d: %s\n\n%s", sim.seed, strings.Join(sim.violations, "\n"), strings.Join(sim.trace, "\n"))
	}
}

// land takes the answer of a request into the model. mu is held.
func (sim *simulation) land(f *simFlight) {
	if f.kind == "open" {
		sim.landOpen(f)
		return
	}
	f.s.flights--
	status, _ := f.p.w.result()
	sim.note("   %v: %d", f, status)
	sim.judge(f)
	if status == http.StatusNotFound && !strings.HasPrefix(f.kind, "foreign") {
		for _, c := range sim.clients {
			if c.session == f.s {
				c.session = nil // it will open another one
			}
		}
	}
}

// at names a moment.
func (sim *simulation) at(t time.Time) string { return t.Sub(sim.zero).String() }

// note adds a line to the trace. mu is held.
func (sim *simulation) note(format string, args ...any) {
	sim.trace = append(sim.trace, fmt.Sprintf("%-10s "+format, append([]any{sim.at(time.Now())}, args...)...))
}

// violated notes that a rule was broken. mu is held.
func (sim *simulation) violated(format string, args ...any) {
	v := fmt.Sprintf(format, args...)
	sim.note("!! %s", v)
	sim.violations = append(sim.violations, v)
}
