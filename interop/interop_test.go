package interop

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
)

// makers returns the clients that can be run here.
func makers(t *testing.T) []Maker {
	all := []Maker{GoSDK, MCPGo}
	missing := NodeMissing()
	if missing != "" && os.Getenv("CI") == "true" {
		installing.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if err := InstallNode(ctx); err != nil {
				t.Error(err)
			}
		})
		if missing = NodeMissing(); missing != "" {
			t.Error(missing)
		}
	}
	if missing != "" {
		t.Run("typescript", func(t *testing.T) { t.Skip(missing) })
		return all
	}
	return append(all, TypeScript("v1"), TypeScript("v2"))
}

var installing sync.Once

// variants are all that can make a difference to the clients.
var variants = []Variant{
	{Hints: true},
	{Hints: true, JSON: true, KeepAlive: true},
	{KeepAlive: true},
	{JSON: true},
	{Hints: true, KeepAlive: true, Events: true},
	{Events: true},
}

// TestSteps takes every step with every client on every variant.
func TestSteps(t *testing.T) {
	for _, m := range makers(t) {
		for _, v := range variants {
			t.Run(m.Name+"/"+v.String(), func(t *testing.T) {
				t.Parallel()
				passed, unsupported := 0, 0
				take(t, m, v, func(o Outcome) {
					switch {
					case o.Failed():
						t.Errorf("%s (%v): %v", o.Step, o.Took.Round(time.Millisecond), o.Err)
					case o.Err != nil:
						unsupported++
					default:
						passed++
						t.Logf("ok %5d ms: %s", o.Took.Milliseconds(), o.Step)
					}
				})
				t.Logf("%d of %d steps passed, %d are not for this", passed, len(Steps), unsupported)
			})
		}
	}
}

// TestBare shows that on replicas which share nothing no client gets anywhere, so
// that the steps prove something.
func TestBare(t *testing.T) {
	for _, m := range makers(t) {
		for _, v := range []Variant{{Bare: true, KeepAlive: true}, {Bare: true, JSON: true}} {
			t.Run(m.Name+"/"+v.String(), func(t *testing.T) {
				t.Parallel()
				take(t, m, v, func(o Outcome) {
					if !o.Failed() {
						t.Errorf("passed: %s", o.Step)
					}
					t.Logf("%s: %v", o.Step, o.Err)
				})
			})
		}
	}
}

func take(t *testing.T, m Maker, v Variant, tell func(Outcome)) {
	w, err := Start(v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	c, err := m.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r := &Run{W: w, Maker: m, C: c}
	r.Take(t.Context(), tell)
}
