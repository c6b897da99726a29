//go:build unix

package storelab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

// askMore is what an answer that comes in at another replica may cost more, where
// the store carries hints. Without hints it would be 100 ms.
const askMore = 5 * time.Millisecond

var askFigures []string

// TestQuestionOverAnotherReplica measures, in one run, a call with an elicitation
// whose answer goes to the replica of the call, and the same with an answer that
// goes to another one and has to be handed on through the store.
func TestQuestionOverAnotherReplica(t *testing.T) {
	for _, b := range networked {
		if b.name == "FerretDB" {
			continue // carries no hints
		}
		t.Run(b.name, func(t *testing.T) {
			_, addr := b.start(t)
			asks, other := askingReplica(t, b.open(t, addr)), askingReplica(t, b.open(t, addr))
			here, elsewhere := questions(t, asks, asks), questions(t, asks, other)
			t.Logf("a call with a question, median: %v, and %v over another replica", here, elsewhere)
			askFigures = append(askFigures, fmt.Sprintf("| %s | %v | %v |", b.name, here, elsewhere))
			// A busy machine is slow, but not by a poll of 100 ms.
			if limit := 10 * askMore; elsewhere-here > limit {
				t.Errorf("another replica costs %v, over %v", elsewhere-here, limit)
			}
		})
	}
}

// askingReplica is a replica on a port of its own, whose tool asks the client.
func askingReplica(t *testing.T, store sessionshare.SharedStore) *url.URL {
	t.Helper()
	r, err := sessionshare.New(sessionshare.Options{Store: store})
	must(t, r, err)
	server := mcp.NewServer(&mcp.Implementation{Name: "lab", Version: "1"}, &mcp.ServerOptions{GetSessionID: r.GetSessionID})
	server.AddTool(&mcp.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "go on?", RequestedSchema: map[string]any{"type": "object"}})
			if err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: answer.Action}}}, nil
		})
	web := httptest.NewServer(r.Handler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		web.Close()
	})
	u, err := url.Parse(web.URL)
	return must(t, u, err)
}

// A splitter sends answers to one replica and everything else to another.
type splitter struct{ calls, answers *url.URL }

func (s splitter) RoundTrip(req *http.Request) (*http.Response, error) {
	to := s.calls
	if req.Method == http.MethodPost && req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(body, []byte(`"method":`)) {
			to = s.answers
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	req.URL.Scheme, req.URL.Host, req.Host = to.Scheme, to.Host, to.Host
	return http.DefaultTransport.RoundTrip(req)
}

// questions returns the median time of a call with a question.
func questions(t *testing.T, calls, answers *url.URL) time.Duration {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "lab", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
		},
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: calls.String() + "/mcp", HTTPClient: &http.Client{Transport: splitter{calls, answers}},
	}, nil)
	must(t, session, err)
	defer session.Close()
	rounds := 20
	if *write {
		rounds = 300
	}
	var took []time.Duration
	for n := range rounds + 5 { // the first ones make copies and connections
		began := time.Now()
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask"})
		if err != nil || res.IsError || res.Content[0].(*mcp.TextContent).Text != "accept" {
			t.Fatalf("the answer did not arrive: %v %v", res, err)
		}
		if n >= 5 {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return quantile(took, 0.5).Round(10 * time.Microsecond)
}
