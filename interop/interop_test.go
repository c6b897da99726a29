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
	ci := os.Getenv("CI") == "true"
	if ci {
		installing.Do(func() { // before anybody looks: what is half installed looks as if it were there
			if NodeMissing() == "" {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if err := InstallNode(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	missing := NodeMissing()
	if missing != "" && ci {
		t.Error(missing)
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
	t.Parallel() // with TestSilentStream, which does nothing for longer than this
	for _, j := range start(t, makers(t), variants) {
		t.Run(j.name, func(t *testing.T) {
			passed, unsupported := 0, 0
			for _, o := range j.wait(t) {
				switch {
				case o.Failed():
					t.Errorf("%s (%v): %v", o.Step, o.Took.Round(time.Millisecond), o.Err)
				case o.Err != nil:
					unsupported++
				default:
					passed++
					t.Logf("ok %5d ms: %s", o.Took.Milliseconds(), o.Step)
				}
			}
			t.Logf("%d of %d steps passed, %d are not for this, %v", passed, len(Steps), unsupported, j.took.Round(time.Second))
		})
	}
}

// TestBare shows that on replicas which share nothing no client gets anywhere, so
// that the steps prove something.
func TestBare(t *testing.T) {
	for _, j := range start(t, makers(t), []Variant{{Bare: true, KeepAlive: true}, {Bare: true, JSON: true}}) {
		t.Run(j.name, func(t *testing.T) {
			for _, o := range j.wait(t) {
				if !o.Failed() {
					t.Errorf("passed: %s", o.Step)
				}
				t.Logf("%s: %v", o.Step, o.Err)
			}
		})
	}
}

// atATime is how many clients run at a time: they wait for most of it.
const atATime = 16

// A job is one client on one variant.
type job struct {
	name     string
	done     chan struct{}
	outcomes []Outcome
	err      error
	took     time.Duration
}

// start starts all jobs, whatever -parallel says.
func start(t *testing.T, makers []Maker, variants []Variant) (jobs []*job) {
	slots := make(chan struct{}, atATime)
	for _, v := range variants {
		for _, m := range makers {
			j := &job{name: m.Name + "/" + v.String(), done: make(chan struct{})}
			jobs = append(jobs, j)
			go func() {
				defer close(j.done)
				slots <- struct{}{}
				defer func() { <-slots }()
				began := time.Now()
				j.outcomes, j.err = take(t.Context(), m, v)
				j.took = time.Since(began)
			}()
		}
	}
	t.Cleanup(func() {
		for _, j := range jobs {
			<-j.done
		}
	})
	return jobs
}

func (j *job) wait(t *testing.T) []Outcome {
	<-j.done
	if j.err != nil {
		t.Fatal(j.err)
	}
	return j.outcomes
}

// take takes all steps with one client in a World of its own.
func take(ctx context.Context, m Maker, v Variant) (outcomes []Outcome, err error) {
	w, err := Start(v)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	c, err := m.New()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := &Run{W: w, Maker: m, C: c}
	r.Take(ctx, func(o Outcome) { outcomes = append(outcomes, o) })
	return outcomes, nil
}
