package sessionshare

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A spyStore is an EventStore that remembers what was stored and closed.
type spyStore struct {
	mcp.EventStore
	mu     sync.Mutex // guards all below
	stored []string
	closed []string
}

func newSpyStore() *spyStore { return &spyStore{EventStore: mcp.NewMemoryEventStore(nil)} }

func (s *spyStore) Append(ctx context.Context, session, stream string, data []byte) error {
	s.mu.Lock()
	s.stored = append(s.stored, string(data))
	s.mu.Unlock()
	return s.EventStore.Append(ctx, session, stream, data)
}

func (s *spyStore) SessionClosed(ctx context.Context, session string) error {
	s.mu.Lock()
	s.closed = append(s.closed, session)
	s.mu.Unlock()
	return s.EventStore.SessionClosed(ctx, session)
}

func (s *spyStore) get() (stored, closed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.stored...), append([]string(nil), s.closed...)
}

// onEvents runs f with one EventStore that the replicas share, and with one each.
func onEvents(t *testing.T, n int, f func(t *testing.T, c *cluster, stores []*spyStore)) {
	for _, shared := range []bool{true, false} {
		t.Run(map[bool]string{true: "shared", false: "one each"}[shared], func(t *testing.T) {
			var stores []*spyStore
			onOne(t, n, storeKinds[0], func(t *testing.T, _ storeKind, c *cluster, _ *told) { f(t, c, stores) },
				func(cfg *nodeConfig) {
					if len(stores) == 0 || !shared {
						stores = append(stores, newSpyStore())
					}
					cfg.handler.EventStore = stores[len(stores)-1]
				})
		})
	}
}

var newest = header{"Mcp-Protocol-Version", "2025-11-25"}

// eventIDs returns the ids of the events that came, the block's first.
func (p *pending) eventIDs() (ids []string) {
	p.messages()
	_, body := p.w.result()
	for line := range strings.Lines(body) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	return ids
}

// Questions are stored as the client gets to see them; a copy that ends purges
// nothing, the end of the session does.
func TestEventStoreOfCopies(t *testing.T) {
	onEvents(t, 2, func(t *testing.T, c *cluster, stores []*spyStore) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "q"), newest)
		q := call.await(t, time.Second, "elicitation/create")
		stored, _ := stores[0].get()
		require.Contains(t, strings.Join(stored, "\n"), string(q.ID))
		require.NotContains(t, strings.Join(stored, "\n"), `"id":1,"method"`)
		require.Equal(t, 202, c.nodes[1].post(sid, answer(q)).Code)
		call.finished(t, time.Second)

		for _, n := range c.nodes {
			n.hosts(t, sid).end(ErrEvicted)
		}
		time.Sleep(time.Second)
		for _, s := range stores {
			_, closed := s.get()
			require.Empty(t, closed)
		}
		require.Equal(t, 200, c.nodes[1].list(sid))
		require.Equal(t, 204, c.nodes[0].delete(sid)) // which does not host it
		time.Sleep(time.Second)
		for _, s := range stores {
			_, closed := s.get()
			assert.Contains(t, closed, sid)
		}
	})
}

// A Last-Event-ID that a copy cannot serve is never an error: the client gets its
// block, and comes again until it finds the right one.
func TestLastEventIDOfAnotherCopy(t *testing.T) {
	onEvents(t, 3, func(t *testing.T, c *cluster, stores []*spyStore) {
		sid := listening(t, c)
		stream := c.nodes[0].stream(sid, newest)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, c.nodes[0].say(t, sid, "1"))
		ids := stream.eventIDs()
		stream.cancel()
		for _, id := range append(ids, "_0", "x", "x_1", "_", "~", "~a~b~c~d", strings.ToUpper(newTag(copyTag))+"_5", strings.Repeat("y", 2000)) {
			for _, n := range c.nodes {
				s := n.start(http.MethodGet, sid, "", newest, header{"Last-Event-ID", id})
				time.Sleep(100 * time.Millisecond)
				s.cancel()
				status, body := s.result()
				assert.Equal(t, 200, status, id)
				assert.Regexp(t, "^id: ", body, id)
				assert.NotContains(t, body, "stream ID conflicts")
			}
		}
	})
}

// The stream of a call that was cut is taken up on the copy that runs it, which
// the client finds by coming again: the answer comes once.
func TestResumePOSTStream(t *testing.T) {
	onEvents(t, 3, func(t *testing.T, c *cluster, stores []*spyStore) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "q"), newest)
		q := call.await(t, time.Second, "elicitation/create")
		ids := call.eventIDs()
		require.NotEmpty(t, ids)
		call.cancel()
		require.True(t, call.ended())
		require.Equal(t, 202, c.nodes[1].post(sid, answer(q)).Code)
		time.Sleep(time.Second)
		last := ids[len(ids)-1]
		for i := range 6 {
			s := c.nodes[(i+1)%3].start(http.MethodGet, sid, "", newest, header{"Last-Event-ID", last})
			time.Sleep(time.Second)
			s.cancel()
			status, body := s.result()
			require.Equal(t, 200, status)
			if strings.Contains(body, "q=accept q") {
				return
			}
			last = s.eventIDs()[0]
		}
		require.Fail(t, "the answer did not come")
	})
}
