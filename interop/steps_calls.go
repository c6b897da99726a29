package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

var callSteps = []Step{
	{"connect", func(ctx context.Context, r *Run) error {
		if err := r.C.Connect(ctx, r.W.URL()); err != nil {
			return err
		}
		if r.C.SessionID() == "" {
			return errors.New("no session ID")
		}
		if !Eventually(ctx, 5*time.Second, func() bool { return r.holder() >= 0 }) {
			return errors.New("the client has no stream")
		}
		return nil
	}},
	{"call a tool, on each replica", func(ctx context.Context, r *Run) error {
		return r.onEach(ctx, func() (int, error) {
			a := r.call(ctx, "echo", Args{Text: "hello"})
			return a.replica, a.expect("hello")
		})
	}},
	{"list tools, resources, prompts", func(ctx context.Context, r *Run) error {
		for range Replicas {
			l, err := r.C.List(ctx)
			if err != nil {
				return err
			}
			var want []string
			for name := range tools(0, nil) {
				want = append(want, name)
			}
			slices.Sort(want)
			slices.Sort(l.Tools)
			err = errors.Join(same("tools", l.Tools, want), same("resources", l.Resources, []string{resourceURI}), same("prompts", l.Prompts, "[greet]"))
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"read a resource, on each replica", func(ctx context.Context, r *Run) error {
		return r.onEach(ctx, func() (int, error) {
			text, err := r.C.Read(ctx, resourceURI)
			if err != nil {
				return -1, err
			}
			return strings.Index("012", text[:1]), same("resource", text[1:], "|note")
		})
	}},
	{"get a prompt, on each replica", func(ctx context.Context, r *Run) error {
		return r.onEach(ctx, func() (int, error) {
			text, err := r.C.Prompt(ctx, "you")
			if err != nil {
				return -1, err
			}
			return strings.Index("012", text[:1]), same("prompt", text[1:], "|hello you")
		})
	}},
	{"completion", func(ctx context.Context, r *Run) error {
		for range Replicas {
			text, err := r.C.Complete(ctx, "a")
			if err != nil {
				return err
			}
			if err := same("completion", text, "a-completed"); err != nil {
				return err
			}
		}
		return nil
	}},
	{"ping the server", func(ctx context.Context, r *Run) error {
		for range Replicas {
			if err := r.C.Ping(ctx); err != nil {
				return err
			}
		}
		return nil
	}},
	{"twenty calls at once", func(ctx context.Context, r *Run) error {
		return atOnce(20, func(n int) error {
			text := fmt.Sprint("echo ", n)
			return r.call(ctx, "echo", Args{Text: text}).expect(text)
		})
	}},
	{"an argument and an answer of 320 KiB", func(ctx context.Context, r *Run) error {
		text := strings.Repeat("0123456789abcdef", 5<<12)
		for range Replicas {
			a := r.call(ctx, "echo", Args{Text: text})
			if a.err != nil {
				return a.err
			}
			if a.text != text {
				return fmt.Errorf("%d bytes came back", len(a.text))
			}
		}
		return nil
	}},
	{"progress", func(ctx context.Context, r *Run) error {
		n := 0
		return r.onEach(ctx, func() (int, error) {
			n++
			mark, text := r.C.Seen().Mark(), fmt.Sprint("step ", n)
			a := r.call(ctx, "progress", Args{Text: text, N: 5})
			if !r.hearsCall(a.replica) {
				return a.replica, nil // nobody promises anything
			}
			if err := a.expect(text); err != nil {
				return a.replica, err
			}
			if r.W.Variant.JSON {
				// It comes another way than the answer, and TypeScript forgets about
				// it when the answer is there.
				return a.replica, nil
			}
			var want []string
			for i := range 5 {
				want = append(want, fmt.Sprintf("%s-%d", text, i+1))
			}
			r.C.Seen().Await(ctx, time.Second, mark, 5, func(e Event) bool { return e.Kind == "progress" })
			return a.replica, same("progress", r.C.Seen().Texts(mark, "progress"), want)
		})
	}},
	{"other calls during a long one", func(ctx context.Context, r *Run) error {
		long := make(chan answer, 1)
		go func() { long <- r.call(ctx, "sleep", Args{Text: "long", MS: 1000}) }()
		for n := 0; ; n++ {
			select {
			case a := <-long:
				if n < 2 {
					return errors.New("no call was answered meanwhile")
				}
				return a.expect("long")
			default:
			}
			if err := r.call(ctx, "echo", Args{Text: "short"}).expect("short"); err != nil {
				return err
			}
		}
	}},
}

// atOnce calls f n times at once.
func atOnce(n int, f func(n int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
