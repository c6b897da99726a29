package interop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestElicitationLatency measures a call with a question: the answer goes to the
// replica of the call, or to another one, which hands it on.
func TestElicitationLatency(t *testing.T) {
	w, err := Start(Variant{Hints: true, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	here := elicitations(t, w, w.Cluster.ReplicaURL(0)+"/mcp", false)
	elsewhere := elicitations(t, w, w.URL(), true)
	t.Logf("a call with a question, median of %d: %v on one replica, %v over another one", rounds, here, elsewhere)
	// Below a millisecond where nothing else runs; without hints it would be 100.
	if more := elsewhere - here; more > 50*time.Millisecond {
		t.Errorf("another replica costs %v", more)
	}
}

const rounds = 200

// elicitations returns the median time of a call with a question.
func elicitations(t *testing.T, w *World, url string, hop bool) time.Duration {
	c := newGoClient()
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Connect(ctx, url); err != nil {
		t.Fatal(err)
	}
	r := &Run{W: w, Maker: GoSDK, C: c}
	if hop {
		if err := r.everywhere(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var took []time.Duration
	for n := range rounds {
		began := time.Now()
		text := fmt.Sprint("question ", n)
		if err := r.call(ctx, "elicit", Args{Text: text}).expect("re: " + text); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2].Round(10 * time.Microsecond)
}
