package interop

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what sessions are for

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var stateSteps = []Step{
	{"a log level holds on each replica", func(ctx context.Context, r *Run) error {
		for _, level := range []string{"info", "error", "debug"} {
			if err := r.C.SetLevel(ctx, level); err != nil {
				return err
			}
			if err := r.logsAt(ctx, level); err != nil {
				return fmt.Errorf("at level %s: %w", level, err)
			}
		}
		return nil
	}},
	{"roots/list_changed reaches each replica", func(ctx context.Context, r *Run) error {
		if err := r.everywhere(ctx); err != nil {
			return err
		}
		if err := r.C.AddRoot(ctx, "file:///second"); err != nil {
			return err
		}
		if err := r.noted(ctx, "roots %s %d", r.C.SessionID()); err != nil {
			return err
		}
		return r.ask(ctx, "roots", "", "file:///first file:///second")
	}},
	{"subscribe: each replica knows, and tells of updates", func(ctx context.Context, r *Run) error {
		if err := r.C.Subscribe(ctx, resourceURI); err != nil {
			return err
		}
		if err := r.noted(ctx, "subscribe %s "+resourceURI+" %d", r.C.SessionID()); err != nil {
			return err
		}
		return r.fromEach(ctx, func(ctx context.Context, i int) error {
			mark := r.C.Seen().Mark()
			if err := r.update(ctx, i); err != nil {
				return err
			}
			if r.C.Seen().Await(ctx, 2*time.Second, mark, 1, Is("updated", resourceURI)) == 0 {
				return errors.New("the update did not arrive")
			}
			return nil
		})
	}},
	{"unsubscribe: no replica tells any more", func(ctx context.Context, r *Run) error {
		if err := r.C.Unsubscribe(ctx, resourceURI); err != nil {
			return err
		}
		if err := r.noted(ctx, "unsubscribe %s "+resourceURI+" %d", r.C.SessionID()); err != nil {
			return err
		}
		time.Sleep(600 * time.Millisecond) // what was merged has come
		mark := r.C.Seen().Mark()
		for i := range Replicas {
			if err := r.update(ctx, i); err != nil {
				return err
			}
		}
		if r.C.Seen().Await(ctx, 300*time.Millisecond, mark, 1, Is("updated", resourceURI)) > 0 {
			return errors.New("an update arrived")
		}
		return nil
	}},
}

// logsAt checks that calls on all replicas log at a level and above.
func (r *Run) logsAt(ctx context.Context, level string) error {
	wanted := map[string]string{"debug": "debug info error", "info": "info error", "error": "error"}[level]
	check := func(i int, text string) string {
		var want []string
		for _, l := range strings.Fields(wanted) {
			want = append(want, fmt.Sprintf("%s-%s-%d", text, l, i))
		}
		return strings.Join(want, " ")
	}
	right := map[int]bool{}
	deadline := time.Now().Add(r.settle())
	for n := 0; len(right) < Replicas; n++ {
		text, mark := fmt.Sprint(level, n), r.C.Seen().Mark()
		a := r.call(ctx, "log", Args{Text: text})
		if right[a.replica] || !r.hearsCall(a.replica) {
			right[a.replica] = true
			for range rand.IntN(Replicas) {
				_ = r.C.Ping(ctx) // see onEach
			}
			continue
		}
		if err := a.expect(text); err != nil {
			return err
		}
		want := check(a.replica, text)
		r.C.Seen().Await(ctx, 250*time.Millisecond, mark, len(strings.Fields(want)), func(e Event) bool { return e.Kind == "log" })
		time.Sleep(20 * time.Millisecond) // for what should not come
		var got []string
		for _, t := range r.C.Seen().Texts(mark, "log") {
			if strings.HasPrefix(t, text+"-") {
				got = append(got, t)
			}
		}
		err := same("log", strings.Join(got, " "), want)
		if err != nil && time.Now().After(deadline) {
			return err
		}
		if err == nil {
			right[a.replica] = true
			continue
		}
		// Without hints it is requests that make a replica look.
		for range 2 * Replicas {
			_ = r.C.Ping(ctx)
		}
	}
	return nil
}

// noted waits until the handlers of all replicas have noted a line for a session.
func (r *Run) noted(ctx context.Context, line, session string) error {
	for i := range Replicas {
		line := fmt.Sprintf(line, session, i)
		// Without hints it is a request that makes a replica look.
		if !Eventually(ctx, r.settle(), func() bool {
			if !r.W.Variant.Hints && !r.W.Journal.Has(line) {
				_ = r.call(ctx, "echo", Args{})
			}
			return r.W.Journal.Has(line)
		}) {
			return fmt.Errorf("not noted: %s", line)
		}
	}
	return nil
}

func (r *Run) update(ctx context.Context, i int) error {
	return r.W.Member(i).Server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: resourceURI})
}

var streamSteps = []Step{
	{"a log message outside a call, from each replica", func(ctx context.Context, r *Run) error {
		return r.fromEach(ctx, func(ctx context.Context, i int) error {
			mark, text := r.C.Seen().Mark(), fmt.Sprint("outside ", i)
			for n := range 5 {
				err := r.W.Session(i, r.C.SessionID()).Log(ctx, &mcp.LoggingMessageParams{Level: "error", Data: fmt.Sprint(text, " ", n)})
				if err != nil {
					return err
				}
			}
			r.C.Seen().Await(ctx, 2*time.Second, mark, 5, func(e Event) bool { return e.Kind == "log" })
			var want []string
			for n := range 5 {
				want = append(want, fmt.Sprint(text, " ", n))
			}
			return same("log", r.C.Seen().Texts(mark, "log"), want)
		})
	}},
	{"list_changed of tools, prompts and resources, from each replica", func(ctx context.Context, r *Run) error {
		return r.fromEach(ctx, func(ctx context.Context, i int) error {
			mark, s := r.C.Seen().Mark(), r.W.Member(i).Server
			s.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
			s.RemoveTools("new")
			s.AddPrompt(&mcp.Prompt{Name: "new"}, nil)
			s.RemovePrompts("new")
			s.AddResource(&mcp.Resource{Name: "new", URI: "note://new"}, nil)
			s.RemoveResources("note://new")
			for _, kind := range []string{"tools", "prompts", "resources"} {
				if r.C.Seen().Await(ctx, 2*time.Second, mark, 1, Is(kind, "")) == 0 {
					return errors.New("no change was told: " + kind)
				}
			}
			time.Sleep(550 * time.Millisecond) // the next one is not merged with this
			return nil
		})
	}},
	{"the same change on all replicas at once: told once or twice", func(ctx context.Context, r *Run) error {
		if err := r.everywhere(ctx); err != nil {
			return err
		}
		time.Sleep(700 * time.Millisecond) // nothing is being merged any more
		mark := r.C.Seen().Mark()
		for i := range Replicas {
			s := r.W.Member(i).Server
			s.AddPrompt(&mcp.Prompt{Name: "burst"}, nil)
			s.RemovePrompts("burst")
		}
		r.C.Seen().Await(ctx, 800*time.Millisecond, mark, 3, Is("prompts", ""))
		if got := len(r.C.Seen().Texts(mark, "prompts")); got < 1 || got > 2 {
			return fmt.Errorf("told %d times", got)
		}
		return nil
	}},
}
