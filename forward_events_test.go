package sessionshare

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// With an EventStore the stream can wander between the replicas, and what has come
// once does not come again: a replica that forwards goes on after what has left it.
func TestWanderingStreamRepeatsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		told := &told{by: map[*node][]string{}}
		c := newCluster(t, 2, hinted, told.asking, func(cfg *nodeConfig) {
			cfg.server.Capabilities = &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}}
			cfg.handler.EventStore = mcp.NewMemoryEventStore(nil)
		})
		a := c.nodes[0]
		v := header{"Mcp-Protocol-Version", "2025-11-25"}
		sid := a.openAsking(t)
		require.Equal(t, 200, a.post(sid, callBody("logging/setLevel", `{"level":"debug"}`), v).Code)
		c.everywhere(sid)
		var want, got []string
		last := ""
		for round := range 4 {
			stream := c.nodes[round%2].stream(sid, v, header{"Last-Event-ID", last})
			time.Sleep(100 * time.Millisecond)
			for i, n := range c.nodes {
				text := fmt.Sprintf("%d from %d", round, i)
				require.NoError(t, n.hosts(t, sid).session.Log(context.Background(), &mcp.LoggingMessageParams{Level: "error", Data: text}))
				want = append(want, text)
				time.Sleep(100 * time.Millisecond)
			}
			for _, m := range stream.messages() {
				got = append(got, m.param("data"))
			}
			_, body := stream.w.result()
			_, last, _ = strings.Cut(body[strings.LastIndex(body, "\nid: ")+1:], "id: ")
			last, _, _ = strings.Cut(last, "\n")
			stream.cancel()
			time.Sleep(2 * time.Second)
		}
		assert.Equal(t, want, got)
	})
}
