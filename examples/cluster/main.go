// Command cluster shows one MCP session on three replicas behind a strict
// round-robin proxy: calls hop from replica to replica, a replica dies, a stranger
// is turned away, the session is deleted and gone everywhere. First it shows the
// same client on three replicas that share nothing.
//
//	go run ./examples/cluster
//
// It needs nothing, ends by itself, and exits with 0 only if every step had the
// outcome it must have.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sessionshare/sessionshare"
)

// patience bounds the whole run.
const patience = 15 * time.Second

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	began := time.Now()
	n := &narrator{out: out}
	if err := without(ctx, n); err != nil {
		return err
	}
	if err := with(ctx, n, sessionshare.Options{Store: sessionshare.NewMemoryStore(), Principal: user}); err != nil {
		return err
	}
	n.printf("\nAll as it must be, in %.1f s.\n", time.Since(began).Seconds())
	return nil
}

// with plays all steps on replicas made with opts, which share a store. Each must
// succeed.
func with(ctx context.Context, n *narrator, opts sessionshare.Options) error {
	n.chapter("WITH SHARING: the same, wrapped in sessionshare, over one store")
	w, err := newSharedWorld(opts)
	if err != nil {
		return err
	}
	defer w.close()
	for _, s := range steps {
		// A person reads at this pace, and a replica that has just started has
		// subscribed to what the others have for it.
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
		n.title(s.title)
		if err := s.run(ctx, w, n); err != nil {
			n.bad("%v", err)
			return fmt.Errorf("step %q: %w", s.title, err)
		}
	}
	return nil
}

// without plays the first steps on replicas of the bare SDK. Each must fail, and
// must fail because a replica does not know the session.
func without(ctx context.Context, n *narrator) error {
	n.chapter("WITHOUT SHARING: three bare SDK handlers behind a strict round-robin proxy")
	w, err := newBareWorld()
	if err != nil {
		return err
	}
	defer w.close()
	for i, s := range steps[:3] {
		n.title(s.title)
		if i > 0 {
			// No session came out of the first step: give the others a better start.
			if err := w.open(ctx, pinned); err != nil {
				return fmt.Errorf("a handshake on one replica: %w", err)
			}
			n.say("(handshake on replica %s alone, as if the proxy were sticky for so long)", w.opener())
		}
		err := s.run(ctx, w, n)
		if err == nil {
			return fmt.Errorf("step %q: expected it to fail without sharing, but it went well", s.title)
		}
		if !sessionLost(err) {
			return fmt.Errorf("step %q: expected a replica that does not know the session, got: %w", s.title, err)
		}
		n.bad("%s", brief(err))
	}
	n.printf("\n  As expected: a session lives in the memory of the replica that opened it.\n")
	return nil
}

// brief leaves out of an error of the SDK how it came about.
func brief(err error) string {
	parts := strings.Split(err.Error(), ": ")
	return parts[0] + ": " + parts[len(parts)-1]
}

// A narrator writes what happens in a form that people like to read.
type narrator struct {
	out    io.Writer
	number int
}

func (n *narrator) printf(format string, args ...any) { fmt.Fprintf(n.out, format, args...) }

func (n *narrator) chapter(title string) {
	n.number = 0
	n.printf("\n%s\n", title)
}

func (n *narrator) title(title string) {
	n.number++
	n.printf("\n  %d. %s\n", n.number, title)
}

func (n *narrator) say(format string, args ...any)  { n.printf("       "+format+"\n", args...) }
func (n *narrator) good(format string, args ...any) { n.printf("     ✓ "+format+"\n", args...) }
func (n *narrator) bad(format string, args ...any)  { n.printf("     ✗ "+format+"\n", args...) }
