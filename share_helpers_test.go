package sessionshare

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// What section 10 of the design promises holds with hints and, more slowly, on a
// store with three methods: most tests run on both.
type storeKind struct {
	name   string
	hinted bool
	setup  setup
}

var storeKinds = []storeKind{
	{"hints", true, hinted},
	{"three methods", false, func(cfg *nodeConfig) { cfg.plain = true }},
}

// hinted gives a node a store with every ability.
func hinted(cfg *nodeConfig) { cfg.opts.Store = hintingStore{cfg.n.view} }

// onBoth runs f in virtual time for each kind of store, on n replicas of which
// the servers do what askingServer says.
func onBoth(t *testing.T, n int, f func(t *testing.T, k storeKind, c *cluster, told *told), setups ...setup) {
	t.Helper()
	for _, k := range storeKinds {
		t.Run(k.name, func(t *testing.T) { onOne(t, n, k, f, setups...) })
	}
}

func onOne(t *testing.T, n int, k storeKind, f func(t *testing.T, k storeKind, c *cluster, told *told), setups ...setup) {
	t.Helper()
	virtual(t, func(t *testing.T) {
		told := &told{by: map[*node][]string{}}
		c := newCluster(t, n, append([]setup{k.setup, told.asking}, setups...)...)
		f(t, k, c, told)
	})
}

// told is what the handlers of the host's servers were told, by replica.
type told struct {
	mu sync.Mutex // guards all below
	by map[*node][]string
}

func (d *told) note(n *node, what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by[n] = append(d.by[n], what)
}

// get returns what a replica was told so far, and forgets it.
func (d *told) get(n *node) []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.by[n]
	d.by[n] = nil
	return out
}

// asking sets up a node whose tools ask the client.
func (d *told) asking(cfg *nodeConfig) {
	n := cfg.n
	cfg.server.HasResources = true
	cfg.server.SubscribeHandler = func(_ context.Context, req *mcp.SubscribeRequest) error {
		if strings.Contains(req.Params.URI, "refused") {
			return fmt.Errorf("no such resource")
		}
		d.note(n, "subscribe "+req.Params.URI)
		return nil
	}
	cfg.server.UnsubscribeHandler = func(_ context.Context, req *mcp.UnsubscribeRequest) error {
		d.note(n, "unsubscribe "+req.Params.URI)
		return nil
	}
	cfg.server.RootsListChangedHandler = func(context.Context, *mcp.RootsListChangedRequest) { d.note(n, "roots") }
	cfg.server.ProgressNotificationHandler = func(_ context.Context, req *mcp.ProgressNotificationServerRequest) {
		d.note(n, fmt.Sprintf("progress %v %v", req.Params.ProgressToken, req.Params.Progress))
	}
	before := cfg.factory
	cfg.factory = func(req *http.Request, opts *mcp.ServerOptions) *mcp.Server {
		s := before(req, opts)
		addAskingTools(s)
		return s
	}
}

// addAskingTools adds a tool per kind of question. Each says what it asked and
// what it was answered.
func addAskingTools(s *mcp.Server) {
	add := func(name string, ask func(context.Context, *mcp.ServerSession, string) (string, error)) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var args struct{ Q string }
				_ = json.Unmarshal(req.Params.Arguments, &args)
				answer, err := ask(ctx, req.Session, args.Q)
				if err != nil {
					return nil, err
				}
				return text(args.Q + "=" + answer), nil
			})
	}
	add("elicit", func(ctx context.Context, s *mcp.ServerSession, q string) (string, error) {
		res, err := s.Elicit(ctx, &mcp.ElicitParams{Message: q, Meta: mcp.Meta{"progressToken": q}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(res.Action, " ", res.Content["a"]), nil
	})
	add("impatient", func(ctx context.Context, s *mcp.ServerSession, q string) (string, error) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := s.Elicit(short, &mcp.ElicitParams{Message: q})
		time.Sleep(time.Second) // the SDK says so on a goroutine of its own
		return "", err
	})
	add("log", func(ctx context.Context, s *mcp.ServerSession, level string) (string, error) {
		return "", s.Log(ctx, &mcp.LoggingMessageParams{Level: mcp.LoggingLevel(level), Data: "x"})
	})
	add("url", func(ctx context.Context, s *mcp.ServerSession, q string) (string, error) {
		res, err := s.Elicit(ctx, &mcp.ElicitParams{Mode: "url", Message: q, URL: "https://example.com/", ElicitationID: "e1"})
		if err != nil {
			return "", err
		}
		return res.Action, nil
	})
	add("sample", func(ctx context.Context, s *mcp.ServerSession, q string) (string, error) {
		res, err := s.CreateMessage(ctx, &mcp.CreateMessageParams{SystemPrompt: q, MaxTokens: 1})
		if err != nil {
			return "", err
		}
		return res.Model, nil
	})
	add("roots", func(ctx context.Context, s *mcp.ServerSession, _ string) (string, error) {
		res, err := s.ListRoots(ctx, nil)
		if err != nil {
			return "", err
		}
		return res.Roots[0].URI, nil
	})
	add("ping", func(ctx context.Context, s *mcp.ServerSession, _ string) (string, error) {
		return "pong", s.Ping(ctx, nil)
	})
}

const askingParams = `{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{},"elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"c","version":"1"}}`

// openAsking opens a session of a client that answers every kind of question.
func (n *node) openAsking(t *testing.T, hs ...header) string {
	t.Helper()
	w := n.post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":`+askingParams+`}`, hs...)
	require.Equal(t, 200, w.Code, w.Body.String())
	sid := w.Header().Get("Mcp-Session-Id")
	require.Equal(t, 202, n.post(sid, greetBody, hs...).Code)
	return sid
}

// askBody calls a tool that asks q.
func askBody(tool, q string) string {
	return callBody("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"Q":%q}}`, tool, q))
}

// A wireMessage is a message as the client gets it.
type wireMessage struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
	raw    string
}

func (m wireMessage) param(name string) string {
	var v map[string]any
	_ = json.Unmarshal(m.Params, &v)
	return fmt.Sprint(v[name])
}

// token is the progress token of a question, as JSON.
func (m wireMessage) token() string {
	return string(member(member(m.Params, "_meta"), "progressToken"))
}

// messages returns what has come on a stream so far, in order.
func (p *pending) messages() (out []wireMessage) {
	synctest.Wait()
	_, body := p.w.result()
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			m := wireMessage{raw: "{" + data}
			_ = json.Unmarshal([]byte(m.raw), &m)
			out = append(out, m)
		}
	}
	return out
}

// methods returns the methods of what has come, in order.
func (p *pending) methods() (out []string) {
	for _, m := range p.messages() {
		out = append(out, m.Method)
	}
	return out
}

// await waits until a message with this method has come, at most for d, and
// returns the last one.
func (p *pending) await(t *testing.T, d time.Duration, method string) wireMessage {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		ms := p.messages()
		if i := slices.IndexFunc(ms, func(m wireMessage) bool { return m.Method == method }); i >= 0 {
			return ms[i]
		}
		if !time.Now().Before(end) {
			_, body := p.w.result()
			require.Fail(t, "no "+method+" came", body)
		}
	}
}

// finished waits for the end of a call for at most d, and returns its answer.
func (p *pending) finished(t *testing.T, d time.Duration) string {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(d):
		_, body := p.w.result()
		require.Fail(t, "the call has no answer", body)
	}
	_, body := p.w.result()
	return body
}

// answer makes the answer of a client to a question: it repeats what was asked.
func answer(m wireMessage) string {
	result := "{}"
	switch m.Method {
	case "elicitation/create":
		result = fmt.Sprintf(`{"action":"accept","content":{"a":%q}}`, m.param("message"))
		if m.param("mode") == "url" {
			result = `{"action":"accept"}`
		}
	case "sampling/createMessage":
		result = fmt.Sprintf(`{"role":"assistant","content":{"type":"text","text":"x"},"model":%q}`, m.param("systemPrompt"))
	case "roots/list":
		result = `{"roots":[{"uri":"file:///r"}]}`
	}
	return answerWith(string(m.ID), result)
}

func answerWith(id, result string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}`
}

// until waits until cond holds, at most for d.
func until(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !cond(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), what)
	}
}

// hosts returns the copy of a session that a replica has.
func (n *node) hosts(t *testing.T, sid string) *hostedCopy {
	t.Helper()
	c, ok := n.lookup(sid)
	require.True(t, ok, "not hosted")
	return c
}

// everywhere makes every replica host a session.
func (c *cluster) everywhere(sid string) {
	for _, n := range c.nodes {
		require.Equal(c.t, 200, n.list(sid))
	}
	time.Sleep(100 * time.Millisecond) // subscriptions are up
	synctest.Wait()
}
