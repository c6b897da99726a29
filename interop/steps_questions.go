package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

var questionSteps = []Step{
	{"elicitation by form, answered over another replica", func(ctx context.Context, r *Run) error {
		if err := r.ask(ctx, "elicit", "what is it?", "re: what is it?"); err != nil {
			return err
		}
		return r.answeredElsewhere()
	}},
	{"elicitation refused", func(ctx context.Context, r *Run) error { return r.ask(ctx, "elicit", "refuse this", "decline") }},
	{"elicitation by URL", func(ctx context.Context, r *Run) error { return r.ask(ctx, "elicitURL", "page", "accept") }},
	{"elicitation that takes its time", func(ctx context.Context, r *Run) error {
		return r.ask(ctx, "elicit", "slow thinking", "re: slow thinking")
	}},
	{"sampling", func(ctx context.Context, r *Run) error { return r.ask(ctx, "sample", "a poem", "re: a poem") }},
	{"roots", func(ctx context.Context, r *Run) error { return r.ask(ctx, "roots", "", "file:///first") }},
	{"the server pings", func(ctx context.Context, r *Run) error { return r.ask(ctx, "ping", "", "pong") }},
	{"ten calls at once, each with a question", func(ctx context.Context, r *Run) error {
		return r.asksAtOnce(ctx, 10, func(n int) string { return fmt.Sprint("question ", n) })
	}},
	{"ten slow questions at once", func(ctx context.Context, r *Run) error {
		return r.asksAtOnce(ctx, 10, func(n int) string { return fmt.Sprint("slow question ", n) })
	}},
	{"ten questions at once in one call", func(ctx context.Context, r *Run) error {
		var want []string
		for n := range 10 {
			want = append(want, fmt.Sprintf("re: many-%d", n))
		}
		return r.onEach(ctx, func() (int, error) {
			a := r.call(ctx, "elicitMany", Args{Text: "many", N: 10})
			return a.replica, r.asked(a, strings.Join(want, ","))
		})
	}},
	{"a question outside a call, from each replica", func(ctx context.Context, r *Run) error {
		return r.fromEach(ctx, func(ctx context.Context, i int) error {
			text, err := elicit(ctx, r.W.Session(i, r.C.SessionID()), fmt.Sprint("outside ", i))
			if err != nil {
				return err
			}
			return same("answer", text, fmt.Sprint("re: outside ", i))
		})
	}},
}

// asked checks what came of a call that asks a question. Where the client cannot
// be heard from the replica of the call, it must have failed, by then.
func (r *Run) asked(a answer, want string) error {
	if a.replica >= 0 && !r.hearsCall(a.replica) {
		if a.err == nil {
			return fmt.Errorf("replica %d asked a question, but has no stream to do so", a.replica)
		}
		return nil
	}
	return a.expect(want)
}

// ask has each replica ask a question, in a call.
func (r *Run) ask(ctx context.Context, tool, text, want string) error {
	return r.onEach(ctx, func() (int, error) {
		a := r.call(ctx, tool, Args{Text: text})
		return a.replica, r.asked(a, want)
	})
}

// asksAtOnce makes n calls at once, each of which asks its own question.
func (r *Run) asksAtOnce(ctx context.Context, n int, text func(n int) string) error {
	return atOnce(n, func(n int) error {
		return r.asked(r.call(ctx, "elicit", Args{Text: text(n)}), "re: "+text(n))
	})
}

// answeredElsewhere checks that the balancer has done what this is all about: an
// answer went to another replica than the call.
func (r *Run) answeredElsewhere() error {
	call := -1
	for _, e := range r.W.Tap.Find(func(e Exchange) bool { return e.Session == r.C.SessionID() }) {
		switch {
		case e.RPC == "tools/call":
			call = e.Replica
		case e.RPC == "answer" && call >= 0 && e.Replica != call:
			return nil
		}
	}
	return errors.New("each answer happened to go where the question came from")
}

// fromEach calls f for each replica, which is to reach the client outside a call
// from there. Every replica has a copy first.
func (r *Run) fromEach(ctx context.Context, f func(ctx context.Context, i int) error) error {
	if err := r.everywhere(ctx); err != nil {
		return err
	}
	for i := range Replicas {
		if r.W.Session(i, r.C.SessionID()) == nil {
			return fmt.Errorf("replica %d has no copy", i)
		}
		if r.hears(i) {
			if err := f(ctx, i); err != nil {
				return fmt.Errorf("from replica %d (stream on %d): %w", i, r.holder(), err)
			}
		}
	}
	return nil
}

// hearing is how long a replica that has just started may take until it hears
// hints.
const hearing = 500 * time.Millisecond

// everywhere makes calls until each replica has a copy of the session and knows
// the client's stream.
func (r *Run) everywhere(ctx context.Context) error {
	if !Eventually(ctx, 5*time.Second, func() bool { return r.holder() >= 0 }) {
		return errors.New("the client has no stream")
	}
	if err := r.onEach(ctx, func() (int, error) {
		a := r.call(ctx, "echo", Args{Text: "x"})
		return a.replica, a.expect("x")
	}); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond)
	return nil
}
