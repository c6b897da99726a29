package sessionshare

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A client that takes up the stream of a call on a replica where the call does not
// run is told to come again, and what to ask for, in a form that all clients see:
// the TypeScript SDK ignores an event that has no data field at all.
func TestTakenUpElsewhereComesAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events := mcp.NewMemoryEventStore(nil)
		c := newCluster(t, 2, func(cfg *nodeConfig) { cfg.handler.EventStore = events })
		a, b := c.nodes[0], c.nodes[1]
		v := header{"Mcp-Protocol-Version", "2025-11-25"}
		sid := a.open(t)
		call := a.call(sid, "slow", v)
		_, body := call.w.result()
		_, id, _ := strings.Cut(body, "id: ")
		id, _, _ = strings.Cut(id, "\n")
		require.NotEmpty(t, id)
		call.cancel()
		<-call.done

		elsewhere := b.stream(sid, v, header{"Last-Event-ID", id})
		require.True(t, elsewhere.ended())
		status, body := elsewhere.result()
		assert.Equal(t, 200, status)
		require.Regexp(t, `^id: ~[A-Z2-7]+~a~`+id+`\nevent: prime\nretry: 100\ndata: \n\n$`, body)

		told, _, _ := strings.Cut(strings.TrimPrefix(body, "id: "), "\n")
		again := a.stream(sid, v, header{"Last-Event-ID", told})
		require.False(t, again.ended())
		a.letGo()
		status, body = again.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "done")
	})
}

// The newest request for a stream wins over the POST as well: its connection may be
// dead, unnoticed here, when the client takes the answer up.
func TestTakenUpWhileThePostSeemsAlive(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *nodeConfig) { cfg.handler.EventStore = mcp.NewMemoryEventStore(nil) })
		a := c.nodes[0]
		v := header{"Mcp-Protocol-Version", "2025-11-25"}
		sid := a.open(t)
		call := a.call(sid, "slow", v)
		_, body := call.w.result()
		_, id, _ := strings.Cut(body, "id: ")
		id, _, _ = strings.Cut(id, "\n")
		require.NotEmpty(t, id)

		again := a.stream(sid, v, header{"Last-Event-ID", id})
		require.False(t, again.ended())
		require.True(t, call.ended())
		third := a.stream(sid, v, header{"Last-Event-ID", id})
		require.False(t, third.ended())
		require.True(t, again.ended())
		a.letGo()
		status, body := third.result()
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "done")
		_, body = call.result()
		assert.NotContains(t, body, "error")
	})
}
