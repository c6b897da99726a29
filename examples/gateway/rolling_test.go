package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// Three gateways are restarted one after the other, twice, while clients call all
// the time. The guarantee: no session is lost, and no client opens another one. A
// call may meet a connection that breaks; it fails alone and is sent again.
func TestRollingRestartLosesNoSession(t *testing.T) {
	const clients, rounds = 12, 2
	slow := mcp.NewServer(&mcp.Implementation{Name: "slow", Version: "1"}, nil)
	var begun, finished atomic.Int64
	mcp.AddTool(slow, &mcp.Tool{Name: "work"},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			begun.Add(1)
			select {
			case <-time.After(200 * time.Millisecond):
				finished.Add(1)
				return text("done"), nil, nil
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
		})
	f := newFleet(t, map[string]*mcp.Server{"slow": slow})
	f.create("all", "clock", "slow")
	token, _ := f.token("alice", "")

	sessions := map[string]bool{}
	var loads [clients]load
	for i := range loads {
		cs, err := f.connect(bearer(token), "all")
		require.NoError(t, err)
		sessions[cs.ID()] = true
		loads[i] = load{session: cs, id: cs.ID(), tool: []string{"clock_now", "slow_work"}[i%2]}
	}
	require.Len(t, sessions, clients)

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range loads {
		running.Go(func() { loads[i].run(ctx) })
	}
	for range rounds {
		for i := range f.all {
			f.restart(i)
		}
	}
	stop()
	running.Wait()

	var calls, retries int
	for i := range loads {
		l := &loads[i]
		require.NoError(t, l.err, "client %d after %d calls", i, l.calls)
		require.Equal(t, l.id, l.session.ID())
		require.NotEmpty(t, said(t, l.session, "clock_now", nil))
		calls, retries = calls+l.calls, retries+l.retries
	}
	s := f.stats()
	t.Logf("%d restarts, %d calls, %d sent again, %d copies resumed", rounds*len(f.all), calls, retries, s.Resumed)
	require.EqualValues(t, clients, s.Opened, "no client opened another session")
	require.Zero(t, s.Gone, "nobody was told that a session is gone")
	require.Zero(t, s.Closed)
	require.GreaterOrEqual(t, s.Resumed, int64(clients*rounds), "sessions did move")
	for i := range loads {
		require.Greater(t, loads[i].calls, len(f.all), "client %d had work to do all the time", i)
	}
	require.Equal(t, begun.Load(), finished.Load(), "running calls were finished, not cut")
	for i := range loads {
		require.NoError(t, loads[i].session.Close())
	}
	require.Eventually(t, func() bool { return f.stats().Closed == clients }, time.Second, 10*time.Millisecond)
}

// A gateway that leaves says so first, and serves what still comes: the load
// balancer has not noticed yet.
func TestReadinessFailsWhileCallsGoOn(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "all")
	require.NoError(t, err)
	defer cs.Close()
	f.all[0].noticed = 3 * time.Second // for machines that are slow
	f.all[0].stop()
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + f.all[0].addr + "/readyz")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusServiceUnavailable
	}, 2*time.Second, time.Millisecond)
	status, _ := f.status(0, bearer(token), "all", cs.ID())
	require.Equal(t, http.StatusOK, status)
}

// A load is one client that calls all the time.
type load struct {
	session *mcp.ClientSession
	id      string
	tool    string

	calls, retries int
	err            error // that no client may see
}

func (l *load) run(ctx context.Context) {
	for ctx.Err() == nil {
		for try := 0; ; try++ {
			// A call that was begun is waited for, whatever ctx says.
			res, err := l.session.CallTool(context.WithoutCancel(ctx), &mcp.CallToolParams{Name: l.tool})
			if err == nil && res.IsError {
				err = fmt.Errorf("the tool failed: %v", res.Content[0].(*mcp.TextContent).Text)
			}
			if err == nil {
				break
			}
			if !onTheWire(err) || try == 20 {
				l.err = err
				return
			}
			l.retries++
			time.Sleep(50 * time.Millisecond)
		}
		l.calls++
		time.Sleep(20 * time.Millisecond)
	}
}

// onTheWire reports whether a call failed alone, by what happens to HTTP in a
// deploy: 502 and 503, and connections that break.
func onTheWire(err error) bool {
	if errors.Is(err, mcp.ErrSessionMissing) || errors.Is(err, mcp.ErrConnectionClosed) {
		return false
	}
	for _, s := range []string{http.StatusText(http.StatusServiceUnavailable), http.StatusText(http.StatusBadGateway), "connection reset", "EOF"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// The program itself: it starts with nothing, says how to use it, and leaves on
// SIGTERM with 0.
func TestTheProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	binary := filepath.Join(t.TempDir(), "gateway")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(binary, "-listen", "127.0.0.1:0", "-registry", t.TempDir(), "-noticed", "100ms")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()

	put := regexp.MustCompile(`curl -X PUT (http://[^/]+)/\S+ -H 'Authorization: Bearer (\w+)' -d '(.*)'`)
	var told []string
	for lines := bufio.NewScanner(stdout); told == nil && lines.Scan(); {
		told = put.FindStringSubmatch(lines.Text())
	}
	require.NotNil(t, told, "it says how to make an endpoint")
	f := &fleet{t: t, url: told[1], admin: told[2]}
	require.Eventually(t, func() bool {
		resp, err := http.Get(f.url + "/readyz")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, 10*time.Second, 20*time.Millisecond)
	status, _ := f.do(http.MethodPut, "/admin/endpoints/tools", told[3])
	require.Equal(t, http.StatusOK, status)
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "tools")
	require.NoError(t, err)
	require.Len(t, toolNames(t, cs), 5)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	_ = cs.Close()
}
