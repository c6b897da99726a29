package sessionshare

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answerTime is how long an answer may take from one replica to another.
func (k storeKind) answerTime() time.Duration {
	if k.hinted {
		return 50 * time.Millisecond
	}
	return askPauseMax + 100*time.Millisecond
}

// Every kind of question is answered on every replica, and the answer reaches it.
func TestQuestions(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		for i, kind := range []struct{ tool, method, answer string }{
			{"elicit", "elicitation/create", "accept q"},
			{"url", "elicitation/create", "accept"},
			{"sample", "sampling/createMessage", "q"},
			{"roots", "roots/list", "file:///r"},
			{"ping", "ping", "pong"},
		} {
			for at, n := range c.nodes {
				call := c.nodes[i%3].start(http.MethodPost, sid, askBody(kind.tool, "q"))
				q := call.await(t, time.Millisecond, kind.method)
				require.True(t, strings.HasPrefix(string(q.ID), `"`), q.raw)
				require.Equal(t, 202, n.post(sid, answer(q)).Code)
				require.Contains(t, call.finished(t, k.answerTime()), "q="+kind.answer, "%s asked by %d answered by %d", kind.tool, i%3, at)
			}
		}
		for _, n := range c.nodes {
			assert.Empty(t, n.asks.out)
		}
	})
}

// Ten questions at once, asked by three replicas under what the SDK thinks are the
// same IDs: each answer reaches its own.
func TestQuestionsDoNotMix(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		var calls []*pending
		var asked []wireMessage
		ids := map[string]bool{}
		for i := range 10 {
			calls = append(calls, c.nodes[i%3].start(http.MethodPost, sid, askBody("elicit", fmt.Sprint("question ", i))))
		}
		for _, p := range calls {
			q := p.await(t, time.Millisecond, "elicitation/create")
			require.False(t, ids[string(q.ID)], "two questions under one ID")
			ids[string(q.ID)] = true
			asked = append(asked, q)
		}
		for i := len(asked) - 1; i >= 0; i-- { // the last question is answered first
			require.Equal(t, 202, c.nodes[(i+1)%3].post(sid, answer(asked[i])).Code)
		}
		for i, p := range calls {
			want := fmt.Sprint("question ", i)
			require.Contains(t, p.finished(t, k.answerTime()), want+"=accept "+want)
		}
	})
}

// In JSON mode a question goes out on the session's stream, which without hints
// has to be on the replica that asks.
func TestQuestionsInJSONMode(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		stream := c.nodes[0].stream(sid)
		defer stream.cancel()
		time.Sleep(100 * time.Millisecond)
		for i, n := range c.nodes {
			q := fmt.Sprint("q", i)
			call := n.start(http.MethodPost, sid, askBody("elicit", q))
			if !k.hinted && i > 0 {
				require.Contains(t, call.finished(t, time.Millisecond), `"error"`, "fails at once, and visibly")
				continue
			}
			until(t, 50*time.Millisecond, "no question", func() bool { return len(stream.messages()) == i+1 })
			m := stream.messages()[i]
			require.Equal(t, q, m.param("message"))
			require.Equal(t, 202, c.nodes[(i+1)%3].post(sid, answer(m)).Code)
			require.Contains(t, call.finished(t, k.answerTime()), q+"=accept "+q)
		}
	}, func(cfg *nodeConfig) { cfg.handler.JSONResponse = true })
}

// What is no answer to a question of this session does nothing, wherever it
// lands.
func TestForgedAnswers(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid, other := c.nodes[0].openAsking(t), c.nodes[1].openAsking(t)
		c.everywhere(sid)
		c.everywhere(other)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "delete?"))
		foreign := c.nodes[0].start(http.MethodPost, other, askBody("elicit", "list?"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		q2 := foreign.await(t, time.Millisecond, "elicitation/create")
		id := strings.Trim(string(q.ID), `"`)
		parts := strings.Split(id, ".")
		accept := `{"action":"accept","content":{"a":"forged"}}`
		forged := []string{
			"1", "1.0", "1e0", "-1", `"1"`, "0", "9223372036854775808", `""`, `".."`,
			string(q2.ID), // of another session
			`"` + parts[0] + "." + parts[1] + `."`,
			`"` + parts[0] + "." + parts[1] + "." + strings.Repeat("0", macDigits) + `"`,
			`"` + parts[0] + ".2." + parts[2] + `"`,
			`"` + strings.Repeat("a", copyTag) + "." + parts[1] + "." + parts[2] + `"`,
			`"` + id + `x"`, `"x` + id + `"`,
			strings.Replace(q.token(), ".p", ".", 1),
			q.token(),
		}
		for _, n := range c.nodes {
			for _, f := range forged {
				w := n.post(sid, answerWith(f, accept))
				require.Contains(t, []int{202, 400}, w.Code, f)
				b := n.post(sid, `[`+answerWith(f, accept)+`]`, header{"Mcp-Protocol-Version", "2025-03-26"})
				require.Contains(t, []int{202, 400}, b.Code, f)
			}
			require.Contains(t, []int{202, 400}, n.post(sid, `{"jsonrpc":"2.0","id":null,"result":`+accept+`}`).Code)
		}
		time.Sleep(5 * time.Second)
		require.False(t, call.ended(), "a forged answer was taken")
		require.False(t, foreign.ended(), "an answer reached another session")
		// The real one still counts, with an escape that JSON allows.
		require.Equal(t, 202, c.nodes[2].post(sid, answer(wireMessage{
			ID: []byte(`"\u00` + fmt.Sprintf("%02x", id[0]) + id[1:] + `"`), Method: q.Method, Params: q.Params})).Code)
		until(t, k.answerTime(), "the real answer", call.ended)
		require.Equal(t, 202, c.nodes[2].post(other, answer(q2)).Code)
		require.Contains(t, foreign.finished(t, k.answerTime()), "list?=accept list?")
	})
}

// Late answers harm nobody: that of a call which is over, of a copy which was
// evicted and resumed (the SDK counts from 1 again), of a replica which is gone.
func TestLateAnswers(t *testing.T) {
	onBoth(t, 3, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		call := b.start(http.MethodPost, sid, askBody("elicit", "old"))
		old := call.await(t, time.Millisecond, "elicitation/create")
		b.hosts(t, sid).end(ErrEvicted)
		call.cancel() // the client of the call goes away: it is an orphan
		until(t, time.Second, "the orphan ends", call.ended)
		require.Equal(t, 200, b.list(sid))
		again := b.start(http.MethodPost, sid, askBody("elicit", "new"))
		fresh := again.await(t, time.Millisecond, "elicitation/create")
		require.Equal(t, strings.Split(string(old.ID), ".")[1], strings.Split(string(fresh.ID), ".")[1], "the SDK counts from 1 again")
		for _, n := range c.nodes {
			require.Equal(t, 202, n.post(sid, answer(old)).Code)
		}
		time.Sleep(3 * time.Second)
		require.False(t, again.ended(), "a late answer was taken for another question")
		require.Equal(t, 202, c.nodes[2].post(sid, answer(fresh)).Code)
		require.Contains(t, again.finished(t, k.answerTime()), "new=accept new")
		require.Equal(t, 202, a.post(sid, answer(fresh)).Code, "an answer nobody waits for any more")

		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, b.Shutdown(ctx))
		require.Equal(t, 202, a.post(sid, answer(fresh)).Code, "the replica is gone")
		require.NotEmpty(t, c.backend.keys(".reply."))
		time.Sleep(replyTTL + time.Second)
		require.Empty(t, c.backend.keys(".reply."), "answers nobody takes do not stay")
	})
}

// An answer that is posted while the store is away waits for it.
func TestAnswerWaitsForTheStore(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		call := a.start(http.MethodPost, sid, askBody("elicit", "q"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		b.view.down()
		posted := b.start(http.MethodPost, sid, answer(q))
		time.Sleep(10 * time.Second)
		require.False(t, posted.ended())
		b.view.heal()
		posted.finished(t, 2*time.Second)
		status, _ := posted.result()
		require.Equal(t, 202, status)
		require.Contains(t, call.finished(t, k.answerTime()), "q=accept q")
	})
}

// Progress that a client reports on a question arrives under the token that the
// host gave it.
func TestProgressOfQuestions(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, told *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "q"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		require.NotEqual(t, `"q"`, q.token())
		progress := func(token string, n int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token, n)
		}
		require.Equal(t, 202, c.nodes[0].post(sid, progress(q.token(), 1)).Code)
		require.Equal(t, []string{"progress q 1"}, told.get(c.nodes[0]))
		require.Equal(t, 202, c.nodes[1].post(sid, progress(q.token(), 2)).Code)
		time.Sleep(k.answerTime())
		require.Equal(t, []string{"progress q 2"}, told.get(c.nodes[0]))
		require.Equal(t, 202, c.nodes[1].post(sid, answer(q)).Code)
		call.finished(t, k.answerTime())
		require.Equal(t, 202, c.nodes[1].post(sid, progress(q.token(), 3)).Code)
		time.Sleep(5 * time.Second)
		require.Empty(t, told.get(c.nodes[0]), "the question is over")
	})
}

// A question that its tool gives up is cancelled under the ID that the client
// knows.
func TestCancelledQuestion(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("impatient", "q"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		got := call.await(t, 2*time.Second, "notifications/cancelled")
		require.Equal(t, string(q.ID), string(member(got.Params, "requestId")))
		call.finished(t, 2*time.Second)
		synctest.Wait()
		require.Empty(t, c.nodes[0].asks.out)
	})
}

// A relayed answer may have 256 KiB; at home the SDK's limit holds. Several
// answers in one body go where they belong.
func TestLargeAndManyAnswers(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		a, b := c.nodes[0], c.nodes[1]
		sid := a.openAsking(t)
		c.everywhere(sid)
		ask := func(n *node) (*pending, wireMessage) {
			p := n.start(http.MethodPost, sid, askBody("elicit", "q"))
			return p, p.await(t, time.Millisecond, "elicitation/create")
		}
		large := func(q wireMessage) string {
			return answerWith(string(q.ID), `{"action":"accept","content":{"a":"`+strings.Repeat("x", MaxValueBytes)+`"}}`)
		}
		call, q := ask(a)
		require.Equal(t, 413, b.post(sid, large(q)).Code)
		require.Equal(t, 202, a.post(sid, large(q)).Code)
		require.Contains(t, call.finished(t, time.Millisecond), "q=accept xxx")

		call1, q1 := ask(a)
		call2, q2 := ask(b)
		batch := "[" + answer(q1) + "," + answer(q2) + "," + answerWith("1", "{}") + "]"
		require.Equal(t, 202, b.post(sid, batch, header{"Mcp-Protocol-Version", "2025-03-26"}).Code)
		require.Contains(t, call1.finished(t, k.answerTime()), "q=accept q")
		require.Contains(t, call2.finished(t, k.answerTime()), "q=accept q")
	})
}

// An answer that the SDK refused was none: the next one counts, wherever it lands.
func TestRefusedAnswer(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		call := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "q"))
		q := call.await(t, time.Millisecond, "elicitation/create")
		require.Equal(t, 400, c.nodes[0].post(sid, answer(q), header{"Mcp-Protocol-Version", "1999-01-01"}).Code)
		require.Equal(t, 202, c.nodes[1].post(sid, answer(q)).Code)
		require.Contains(t, call.finished(t, k.answerTime()), "q=accept q")
	})
}

// The end of one question does not make the replica forget another one that
// begins at that moment.
func TestOneQuestionEndsAnotherBegins(t *testing.T) {
	onBoth(t, 2, func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		for range 20 {
			first := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "q"))
			q := first.await(t, time.Millisecond, "elicitation/create")
			second := c.nodes[0].start(http.MethodPost, sid, askBody("elicit", "p"))
			require.Equal(t, 202, c.nodes[0].post(sid, answer(q)).Code)
			p := second.await(t, time.Millisecond, "elicitation/create")
			require.Equal(t, 202, c.nodes[1].post(sid, answer(p)).Code)
			require.Contains(t, second.finished(t, k.answerTime()), "p=accept p")
			first.finished(t, time.Millisecond)
		}
	})
}

// A question that is asked outside a call goes out on the session's stream, and
// is answered all the same.
func TestQuestionOutsideCall(t *testing.T) {
	onOne(t, 3, storeKinds[0], func(t *testing.T, k storeKind, c *cluster, _ *told) {
		sid := c.nodes[0].openAsking(t)
		c.everywhere(sid)
		stream := c.nodes[0].stream(sid)
		defer stream.cancel()
		time.Sleep(100 * time.Millisecond)
		got := make(chan string, 1)
		session := c.nodes[1].hosts(t, sid).session
		go func() {
			res, err := session.Elicit(context.Background(), &mcp.ElicitParams{Message: "q"})
			if err != nil {
				got <- err.Error()
				return
			}
			got <- fmt.Sprint(res.Content["a"])
		}()
		q := stream.await(t, 50*time.Millisecond, "elicitation/create")
		require.Equal(t, 202, c.nodes[2].post(sid, answer(q)).Code)
		require.Equal(t, "q", <-got)
	})
}
