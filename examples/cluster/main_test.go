package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sessionshare/sessionshare"
)

// What a person is to read, in this order.
var plot = []string{
	"WITHOUT SHARING",
	"1. Alice's client opens a session", "✗ the client gives up", "session not found",
	"2. It calls a tool six times", "✗ call ", "session not found",
	"3. The replica that opened the session is killed", "replica A is dead", "✗ call ", "session not found",
	"As expected",
	"WITH SHARING",
	"1. Alice's client opens a session", "initialize → ", "✓ opened on replica ",
	"2. It calls a tool six times", "call 1 → ", "call 6 → ", "✓ three replicas, one session",
	"3. The replica that opened the session is killed", "call 4 → ", "✓ no error",
	"4. A new process", "✓ the new process resumed",
	"5. A tool asks Alice", "asks, Alice answers at", "✓ the answer found the tool",
	"6. She cancels", "the call runs on replica", "✓ cancelled at replica ",
	"7. A tool is added", "the client's stream is at replica ", "told after ", "✓ the news came",
	"8. Mallory", "replica A: POST 404, GET 404, DELETE 404", "replica C: POST 404, GET 404, DELETE 404", "✓ what is not hers",
	"9. Alice's client closes", "✓ DELETE → replica ",
	"10. It is gone everywhere", "replica A: 404", "replica B: 404", "replica C: 404", "✓ nobody hosts it",
	"All as it must be",
}

func TestTheWholePlay(t *testing.T) {
	var out strings.Builder
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := run(ctx, &out)
	t.Log(out.String())
	require.NoError(t, err)
	require.Less(t, time.Since(began), patience)
	rest := out.String()
	for _, want := range plot {
		_, after, found := strings.Cut(rest, want)
		require.True(t, found, "%q is missing, or not in its place", want)
		rest = after
	}
	_, shared, _ := strings.Cut(out.String(), "WITH SHARING")
	require.NotContains(t, shared, "✗")
}

// The steps check what they show: on a cluster that is set up wrongly, one fails.
func TestStepsFail(t *testing.T) {
	anybody := func(*http.Request) (string, error) { return alice, nil }
	for name, tc := range map[string]struct {
		opts sessionshare.Options
		want string
	}{
		"no store":            {sessionshare.Options{Principal: user}, "the client gives up"},
		"no principal":        {sessionshare.Options{Store: sessionshare.NewMemoryStore(), Principal: anybody}, "expected 404 for mallory POST"},
		"wrong principal":     {sessionshare.Options{Store: sessionshare.NewMemoryStore(), Principal: func(*http.Request) (string, error) { return "bob", nil }}, "of bob"},
		"closes go unnoticed": {sessionshare.Options{Store: forgetful{sessionshare.NewMemoryStore()}, Principal: user}, "expected 404 on replica"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, with(t.Context(), &narrator{out: io.Discard}, tc.opts), tc.want)
		})
	}
}

// A forgetful store says that it has stored a close mark, and has not.
type forgetful struct{ *sessionshare.MemoryStore }

func (forgetful) PutDelete(context.Context, string, []byte, time.Duration, string) error { return nil }
