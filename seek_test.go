package sessionshare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A question that cannot go to the stream of its call, as answers are JSON, finds
// the session's stream on another replica although the hint of it did not come.
func TestQuestionSeeksTheStream(t *testing.T) {
	virtual(t, func(t *testing.T) {
		told := &told{by: map[*node][]string{}}
		c := newCluster(t, 2, hinted, told.asking, func(cfg *nodeConfig) { cfg.handler.JSONResponse = true })
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)

		began := time.Now()
		w := b.post(sid, askBody("elicit", "nobody hears"))
		assert.Contains(t, w.Body.String(), "undelivered")
		assert.LessOrEqual(t, time.Since(began), 200*time.Millisecond, "without any stream it fails soon")

		a.view.set(func(c storeCall) fault {
			if c.op == "Publish" {
				return fault{err: errStoreDown}
			}
			return fault{}
		})
		stream := a.stream(sid)
		require.False(t, stream.ended())
		call := b.start("POST", sid, askBody("elicit", "hello"))
		q := stream.await(t, time.Second, "elicitation/create")
		assert.Equal(t, "hello", q.param("message"))
		require.Equal(t, 202, b.post(sid, answer(q)).Code)
		assert.Contains(t, call.finished(t, time.Second), "hello=accept hello")
	})
}
