package interop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Run is one client in one World.
type Run struct {
	W     *World
	Maker Maker
	C     Client
}

// A Step is something a client does, and what must come of it. Steps are taken in
// the order of the table; each leaves a session that the next can use.
type Step struct {
	Name string
	Do   func(context.Context, *Run) error
}

// Unsupported is the error of a step that this client, or this World, cannot take.
type Unsupported string

func (u Unsupported) Error() string { return string(u) }

// stepTime bounds a step.
const stepTime = 40 * time.Second

// Steps is the table.
var Steps = slices.Concat(callSteps, questionSteps, stateSteps, streamSteps, faultSteps, endSteps)

// An Outcome is what became of a step.
type Outcome struct {
	Step string
	Err  error // nil, or an Unsupported, or what went wrong
	Took time.Duration
}

// Failed reports whether the step went wrong.
func (o Outcome) Failed() bool {
	var u Unsupported
	return o.Err != nil && !errors.As(o.Err, &u)
}

// Take takes all steps, and tells of each. Where the client does not even connect,
// no further one is taken.
func (r *Run) Take(ctx context.Context, tell func(Outcome)) {
	for i, s := range Steps {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, stepTime)
		err := s.Do(ctx, r)
		cancel()
		tell(Outcome{s.Name, err, time.Since(began)})
		if i == 0 && err != nil {
			return
		}
	}
}

func (r *Run) can(q Quirk) error {
	if slices.Contains(r.Maker.Quirks, q) {
		return Unsupported(string(q))
	}
	return nil
}

// An answer is what came of a call: who answered, and what.
type answer struct {
	replica int // -1: nobody
	text    string
	err     error // of the tool, or of the protocol
}

// call calls a tool.
func (r *Run) call(ctx context.Context, tool string, a Args) answer {
	text, err := r.C.Call(ctx, tool, a)
	if err != nil {
		text = err.Error()
	}
	who, rest, ok := strings.Cut(text, "|")
	if i, e := strconv.Atoi(who); ok && e == nil {
		return answer{i, rest, err}
	}
	return answer{-1, text, err}
}

// onEach calls f again and again until it has been on each replica, as f returns
// it.
func (r *Run) onEach(ctx context.Context, f func() (replica int, err error)) error {
	seen := map[int]bool{}
	for range 12 * Replicas {
		i, err := f()
		if err != nil {
			return err
		}
		if seen[i] {
			// Calls that take three requests would be on the same replica for ever.
			for range rand.IntN(Replicas) {
				_ = r.C.Ping(ctx)
			}
		}
		if seen[i] = true; len(seen) == Replicas {
			return nil
		}
	}
	return fmt.Errorf("served by replicas %v only", seen)
}

// holder returns the replica on which the client's stream is.
func (r *Run) holder() int {
	e, _ := r.W.Tap.Stream(r.C.SessionID())
	return e.Replica
}

// hears reports whether the client hears what a replica sends outside a call.
func (r *Run) hears(replica int) bool { return r.W.Variant.Hints || replica == r.holder() }

// hearsCall is hears for what is sent during a call.
func (r *Run) hearsCall(replica int) bool { return !r.W.Variant.JSON || r.hears(replica) }

// settle is how long replicas may take to agree: at once with hints, else until
// each has looked.
func (r *Run) settle() time.Duration {
	if r.W.Variant.Hints {
		return 3 * time.Second // milliseconds, on a machine that has time
	}
	return basicRecheck + 8*time.Second
}

// expect returns an error unless an answer is text, by any replica.
func (a answer) expect(text string) error {
	switch {
	case a.err != nil:
		return fmt.Errorf("replica %d: %w", a.replica, a.err)
	case a.text != text:
		return fmt.Errorf("replica %d answered %q, want %q", a.replica, a.text, text)
	}
	return nil
}

func same(what string, got, want any) error {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		return fmt.Errorf("%s: %s, want %s", what, g, w)
	}
	return nil
}
