package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

func toolNames(t *testing.T, cs *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range cs.Tools(t.Context(), nil) {
		require.NoError(t, err)
		names = append(names, tool.Name)
	}
	return names
}

func TestToolsOfTwoUpstreamsFromAnyReplica(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock", "notes")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "all")
	require.NoError(t, err)
	for range 3 {
		require.Equal(t, []string{"clock_now", "notes_read", "notes_write"}, toolNames(t, cs))
	}
	require.Equal(t, "written", said(t, cs, "notes_write", map[string]string{"title": "a", "text": "b"}))
	for range 6 {
		require.Equal(t, "b", said(t, cs, "notes_read", map[string]string{"title": "a"}))
		require.NotEmpty(t, said(t, cs, "clock_now", nil))
	}
	s := f.stats()
	require.EqualValues(t, 1, s.Opened)
	require.EqualValues(t, 2, s.Resumed)
	require.NoError(t, cs.Close())
	f.everywhere(http.StatusNotFound, bearer(token), "all", cs.ID())
}

func TestTheScopeIsFrozenAtOpen(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock", "notes")
	token, _ := f.token("alice", "")
	reader := bearer(token)
	reader.header.Set(toolScope, "read")
	cs, err := f.connect(reader, "all")
	require.NoError(t, err)
	defer cs.Close()
	// A client that forgets the header later, or sends another one, gains nothing.
	for i := range f.all {
		for _, header := range []string{"", "read", "write"} {
			p := bearer(token)
			if header != "" {
				p.header.Set(toolScope, header)
			}
			status, tools := f.status(i, p, "all", cs.ID())
			require.Equal(t, http.StatusOK, status)
			require.Contains(t, tools, "notes_read")
			require.NotContains(t, tools, "notes_write", "gateway %d, header %q", i, header)
		}
	}
	_, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "notes_write", Arguments: map[string]string{"title": "a"}})
	require.ErrorContains(t, err, "unknown tool")
	wrong := bearer(token)
	wrong.header.Set(toolScope, "everything")
	_, err = f.connect(wrong, "all")
	require.ErrorContains(t, err, "Bad Request")
}

func TestWhoMayUseASession(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock")
	f.create("other", "clock")
	token, grant := f.token("alice", "")
	alice := bearer(token)
	cs, err := f.connect(alice, "all")
	require.NoError(t, err)
	bobs, _ := f.token("bob", "")
	f.everywhere(http.StatusNotFound, bearer(bobs), "all", cs.ID())
	f.everywhere(http.StatusNotFound, alice, "other", cs.ID())
	f.everywhere(http.StatusNotFound, alice, "nowhere", cs.ID())
	f.everywhere(http.StatusUnauthorized, bearer("guess"), "all", cs.ID())

	// A refreshed token is the same person.
	refreshed, same := f.token("alice", grant)
	require.Equal(t, grant, same)
	alice.token.Store(&refreshed)
	for range 3 {
		require.NotEmpty(t, said(t, cs, "clock_now", nil))
	}
	// Users do not administrate.
	req, err := http.NewRequest(http.MethodDelete, f.url+"/admin/endpoints/all", nil)
	require.NoError(t, err)
	resp, err := alice.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.NoError(t, cs.Close())
}

func TestARevokedGrantEndsItsSessions(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock")
	token, grant := f.token("alice", "")
	token2, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "all")
	require.NoError(t, err)
	cs2, err := f.connect(bearer(token2), "all")
	require.NoError(t, err)
	defer cs2.Close()
	f.everywhere(http.StatusOK, bearer(token2), "all", cs.ID()) // the same person

	status, _ := f.do(http.MethodDelete, "/admin/grants/"+grant, "")
	require.Equal(t, http.StatusOK, status)
	f.everywhere(http.StatusUnauthorized, bearer(token), "all", cs.ID())
	// Whoever opened it under the grant that is gone, it is over for everybody.
	f.everywhere(http.StatusNotFound, bearer(token2), "all", cs.ID())
	require.NotEmpty(t, said(t, cs2, "clock_now", nil), "a session under another grant goes on")
	_, err = f.connect(bearer(token), "all")
	require.Error(t, err)
	_ = cs.Close()
}

func TestAnEndpointMadeAnewHasNoneOfTheOldSessions(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock", "notes")
	f.create("other", "clock")
	token, _ := f.token("alice", "")
	alice := bearer(token)
	cs, err := f.connect(alice, "all")
	require.NoError(t, err)
	f.everywhere(http.StatusOK, alice, "all", cs.ID())
	other, err := f.connect(alice, "other")
	require.NoError(t, err)
	defer other.Close()

	status, _ := f.do(http.MethodPut, "/admin/endpoints/all", `{"upstreams":["clock"]}`)
	require.Equal(t, http.StatusConflict, status)
	status, _ = f.do(http.MethodDelete, "/admin/endpoints/all", "")
	require.Equal(t, http.StatusOK, status)
	status, _ = f.do(http.MethodDelete, "/admin/endpoints/all", "")
	require.Equal(t, http.StatusNotFound, status)
	f.create("all", "clock") // in the same second
	f.everywhere(http.StatusNotFound, alice, "all", cs.ID())
	_ = cs.Close()

	anew, err := f.connect(alice, "all")
	require.NoError(t, err)
	defer anew.Close()
	f.everywhere(http.StatusOK, alice, "all", anew.ID())
	require.Equal(t, []string{"clock_now"}, toolNames(t, anew))
	require.NotEmpty(t, said(t, other, "clock_now", nil), "sessions of other endpoints go on")
}

// A client that does nothing but listen learns from its stream, which ends, that the
// endpoint is gone.
func TestAStreamEndsWithItsEndpoint(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "all")
	require.NoError(t, err)
	told := make(chan error, 1)
	go func() { told <- cs.Wait() }()
	status, _ := f.do(http.MethodDelete, "/admin/endpoints/all", "")
	require.Equal(t, http.StatusOK, status)
	select {
	case err := <-told:
		require.ErrorIs(t, err, mcp.ErrSessionMissing)
	case <-time.After(10 * time.Second):
		t.Fatal("the stream goes on")
	}
}

// Connections to upstreams belong to copies: three copies have three, a closed
// session has none, wherever it was closed.
func TestUpstreamConnectionsEndWithTheCopy(t *testing.T) {
	counted := newClock()
	count := func() (n int) {
		for range counted.Sessions() {
			n++
		}
		return n
	}
	f := newFleet(t, map[string]*mcp.Server{"counted": counted})
	f.create("counted", "counted")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "counted")
	require.NoError(t, err)
	f.everywhere(http.StatusOK, bearer(token), "counted", cs.ID())
	require.Equal(t, 3, count())
	f.restart(1)
	require.Equal(t, 2, count(), "a copy that was shut down has let go")
	require.NoError(t, cs.Close())
	require.Eventually(t, func() bool {
		f.everywhere(http.StatusNotFound, bearer(token), "counted", cs.ID())
		return count() == 0
	}, 2*recheck, 50*time.Millisecond)
}

// An upstream that was restarted has lost its sessions; those of the gateway go on.
func TestAnUpstreamThatForgets(t *testing.T) {
	clock := newClock()
	f := newFleet(t, map[string]*mcp.Server{"forgetful": clock})
	f.create("forgetful", "forgetful")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "forgetful")
	require.NoError(t, err)
	defer cs.Close()
	f.everywhere(http.StatusOK, bearer(token), "forgetful", cs.ID())
	for s := range clock.Sessions() {
		require.NoError(t, s.Close())
	}
	for range 6 {
		require.NotEmpty(t, said(t, cs, "forgetful_now", nil))
	}
}

// An upstream that cannot be reached costs a call, not the session.
func TestAnUpstreamThatIsAway(t *testing.T) {
	f := newFleet(t, nil)
	f.create("all", "clock", "notes")
	token, _ := f.token("alice", "")
	cs, err := f.connect(bearer(token), "all")
	require.NoError(t, err)
	f.demo.close()
	f.restart(1) // has no copy now, and cannot make one
	for i, want := range []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusOK} {
		status, _ := f.status(i, bearer(token), "all", cs.ID())
		require.Equal(t, want, status, "gateway %d", i)
	}
	require.NoError(t, cs.Close())
}
