//go:build unix

package storelab

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// What the library does with a store, as clients feel it.
const (
	opOpen    = "open"
	opResume  = "resume"
	opRecheck = "call with recheck"
	opHosted  = "call without"
	opClose   = "close"
)

var lifeOps = []string{opOpen, opResume, opRecheck, opHosted, opClose}

// library measures open, resume, recheck and close through the whole library,
// first near the store, then far from it, which shows the round trips.
func library(t *testing.T, b backend, addr string) {
	rounds := 3
	if *write {
		rounds = 300
	}
	measured := lives(t, b, addr, rounds)
	for _, name := range lifeOps {
		took := measured[name]
		slices.Sort(took)
		f := speedFigure{b.name, name, 0, quantile(took, 0.5), quantile(took, 0.99)}
		t.Logf("%-17s p50 %v, p99 %v", name, f.p50, f.p99)
		speedFigures = append(speedFigures, f)
	}
	if _, ok := want[b.name]; ok {
		trips(t, b, addr)
	}
}

// lives lets sessions live on several replicas and returns how long each step
// took: two as they are by default, and one that reads the close marks with each
// call.
func lives(t *testing.T, b backend, addr string, rounds int) map[string][]time.Duration {
	t.Helper()
	store := b.open(t, addr)
	opts := sessionshare.Options{Store: store}
	first, second := newReplica(t, opts), newReplica(t, opts)
	opts.RecheckInterval = -1
	strict := newReplica(t, opts)
	took := map[string][]time.Duration{}
	step := func(name string, r *replica, method, id, body string, want int) string {
		began := time.Now()
		w := r.do(context.Background(), method, id, body)
		took[name] = append(took[name], time.Since(began))
		if w.Code != want {
			t.Fatalf("%s was answered %d %s", name, w.Code, w.Body)
		}
		return w.Header().Get("Mcp-Session-Id")
	}
	// Connections are made, and statements prepared, by sessions that do not count.
	for n := range rounds + 2 {
		if n == 2 {
			clear(took)
		}
		id := step(opOpen, first, http.MethodPost, "", initBody, http.StatusOK)
		first.do(context.Background(), http.MethodPost, id, initedMs)
		step(opResume, second, http.MethodPost, id, listTools(), http.StatusOK)
		for range 3 {
			step(opHosted, second, http.MethodPost, id, listTools(), http.StatusOK)
		}
		strict.do(context.Background(), http.MethodPost, id, listTools())
		for range 3 {
			step(opRecheck, strict, http.MethodPost, id, listTools(), http.StatusOK)
		}
		step(opClose, second, http.MethodDelete, id, "", http.StatusNoContent)
	}
	return took
}

// want is what the READMEs of the stores promise: how many round trips follow one
// another.
var want = map[string]map[string]int{
	"Redis":      {"Put": 1, "Get": 1, "record and marks": 1, "Touch": 1},
	"PostgreSQL": {"Put": 1, "Get": 1, "record and marks": 1, "Touch": 1},
	"NATS":       {"Put": 1, "Get": 1, "record and marks": 3, "Touch": 2},
	"FerretDB":   {"Put": 2, "Get": 1, "record and marks": 1, "Touch": 2},
}

// trips counts the round trips of everything by putting the server far away:
// what is asked at once, on several connections, counts once. What the server
// itself needs is measured near it, and does not count.
func trips(t *testing.T, b backend, addr string) {
	near, far := b.open(t, addr), newWire(t, addr, farAway)
	s := b.open(t, far.addr)
	for _, op := range operations {
		var n int
		for range 3 { // a busy machine adds to some, takes from none
			if n = tripsOf(fastest(t, op, s), fastest(t, op, near)); n == want[b.name][op.name] {
				break
			}
		}
		if promised := want[b.name][op.name]; n != promised {
			t.Errorf("%s takes %d round trips, the README of its store says %d", op.name, n, promised)
		}
		noteTrips(t, b.name, op.name, n)
	}
	measured, base := lives(t, b, far.addr, 2), lives(t, b, addr, 2)
	for _, name := range lifeOps {
		noteTrips(t, b.name, name, tripsOf(slices.Min(measured[name]), slices.Min(base[name])))
	}
}

func fastest(t *testing.T, op operation, s sessionshare.SharedStore) time.Duration {
	t.Helper()
	best := time.Hour
	for range 4 {
		began := time.Now()
		if err := op.call(t.Context(), s, 1); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	return best
}

func tripsOf(far, near time.Duration) int { return int((far - near + farAway) / (2 * farAway)) }

func noteTrips(t *testing.T, store, op string, n int) {
	t.Helper()
	t.Logf("%s: %d round trips", op, n)
	tripFigures = append(tripFigures, tripFigure{store, op, n})
}
