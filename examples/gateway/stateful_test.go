package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// A watched browser notes which of its sessions are used, and how many there were.
type watchedBrowser struct {
	*mcp.Server
	mu     sync.Mutex // guards all below
	used   map[string]int
	opened int
}

func newWatchedBrowser() *watchedBrowser {
	b := &watchedBrowser{Server: newBrowser(), used: map[string]int{}}
	b.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			b.mu.Lock()
			switch method {
			case "initialize":
				b.opened++
			case "tools/call":
				b.used[req.GetSession().ID()]++
			}
			b.mu.Unlock()
			return next(ctx, method, req)
		}
	})
	return b
}

func (b *watchedBrowser) count() (opened, used int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened, len(b.used)
}

func (b *watchedBrowser) open() (n int) {
	for range b.Sessions() {
		n++
	}
	return n
}

// Ten first calls at once, on three replicas, are in one session at the upstream;
// it stays the same on copies that are made later, and ends with the session.
func TestOneBrowserForAllReplicas(t *testing.T) {
	browser := newWatchedBrowser()
	f := newFleet(t, map[string]*mcp.Server{"web": browser.Server})
	f.cfg.stateful["web"] = true
	f.create("web", "web")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "web")
	require.NoError(t, err)
	f.everywhere(http.StatusOK, bearer(token), "web", cs.ID()) // three copies
	require.Zero(t, browser.open(), "looking at the tools leaves no browser open")
	before, _ := browser.count()

	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			_, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "web_page"})
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	opened, used := browser.count()
	require.Equal(t, 1, opened-before)
	require.Equal(t, 1, used)
	require.Equal(t, 1, browser.open())

	other, err := f.connect(bearer(token), "web")
	require.NoError(t, err)
	defer other.Close()
	for i := range 6 {
		url := fmt.Sprint("https://example.com/", i)
		require.Equal(t, "there", said(t, cs, "web_goto", map[string]string{"url": url}))
		for range 3 {
			require.Equal(t, url, said(t, cs, "web_page", nil))
		}
		require.Empty(t, said(t, other, "web_page", nil), "another session has another browser")
		if i < 3 {
			f.restart(i) // a copy that ends leaves the browser alone
			require.Equal(t, url, said(t, cs, "web_page", nil))
		}
	}
	require.Equal(t, 2, browser.open())
	require.NoError(t, cs.Close())
	f.everywhere(http.StatusNotFound, bearer(token), "web", cs.ID())
	require.Eventually(t, func() bool { return browser.open() == 1 }, 5*time.Second, 10*time.Millisecond,
		"it is closed with the session, and the other one is not")
}

// A browser that crashed has lost its page, which a client must know.
func TestABrowserThatForgets(t *testing.T) {
	browser := newWatchedBrowser()
	f := newFleet(t, map[string]*mcp.Server{"web": browser.Server})
	f.cfg.stateful["web"] = true
	f.create("web", "web")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "web")
	require.NoError(t, err)
	defer cs.Close()
	require.Equal(t, "there", said(t, cs, "web_goto", map[string]string{"url": "u"}))
	for s := range browser.Sessions() {
		require.NoError(t, s.Close())
	}
	_, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "web_page"})
	require.ErrorContains(t, err, "upstream web has lost its session")
}
