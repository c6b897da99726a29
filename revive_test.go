package sessionshare

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Rule 2, where the simulation seldom comes: what a missing record makes a copy
// do. A revived record would be found out by the look after its Put, so these
// tests look at the Puts.

func TestMissingRecordOfAClosedSessionIsNotWritten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		time.Sleep(testTouch + time.Second)

		// b has looked and is about to touch when the session is closed.
		release := b.view.hang(false, func(call storeCall) bool { return call.op == "Touch" && call.about(keySession) })
		p := b.start("POST", sid, callBody("tools/list", "{}"))
		synctest.Wait()
		require.Equal(t, 204, a.delete(sid))
		release()
		<-p.done
		require.Equal(t, 404, b.list(sid))
		require.Zero(t, b.view.count("Put"), "a record was written for a closed session")
		require.Empty(t, c.backend.keys(keySession))
	})
}

func TestMissingRecordOfAnExpiredSessionIsNotWritten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		sid := a.open(t)
		require.Equal(t, 200, b.list(sid))
		c.backend.lose(keySession)
		hosted, ok := b.lookup(sid)
		require.True(t, ok)
		hosted.mu.Lock()
		hosted.touched = b.now().Add(-testIdle)
		hosted.mu.Unlock()

		require.ErrorIs(t, hosted.touch(context.Background(), true), ErrGone)
		require.Zero(t, b.view.count("Put"), "a record was written for a session that has expired")
		require.Equal(t, 404, b.list(sid))
	})
}
