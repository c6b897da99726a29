package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sessionshare/sessionshare"
)

// A stateful upstream, such as a browser, keeps something for each session it has.
// A session of the gateway has one session there, whichever replica serves the
// call: the first call opens it and keeps its ID with the session
// (Session.LoadOrStore), copies on other replicas use it, and it is closed when the
// session is (Options.Ended). A copy that ends leaves it alone.

const (
	// claims is how often the opening may be left to somebody who then dies.
	claims = 8
	// claimed is for how long one waits for whom it was left to.
	claimed = 3 * time.Second
)

// sharedID returns the ID of the session at the upstream that belongs to ours. Of
// several first calls, on whatever replicas, one opens it: the one whose claim
// comes first. If nothing comes of that, the next claim counts.
func (u *upstream) sharedID(ctx context.Context) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n := 0; u.id == "" && n < claims; n++ {
		if id, found, err := u.session.Load(ctx, u.name); err != nil {
			return "", err
		} else if found {
			u.id = string(id)
			break
		}
		_, taken, err := u.session.LoadOrStore(ctx, fmt.Sprintf("%s.claim.%d", u.name, n), []byte("1"))
		if err != nil {
			return "", err
		}
		if !taken {
			break
		}
		if err := u.await(ctx); err != nil {
			return "", err
		}
	}
	if u.id != "" {
		return u.id, nil
	}
	id, err := u.open(ctx)
	if err == nil {
		u.id = id
	}
	return id, err
}

// await waits until whoever has the claim has opened the session, or too long.
func (u *upstream) await(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < claimed; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, found, err := u.session.Load(ctx, u.name); found || err != nil {
			return err
		}
	}
	return nil
}

// open opens a session at the upstream and keeps it with ours. If somebody was
// faster after all, that one counts.
func (u *upstream) open(ctx context.Context) (string, error) {
	conn, err := u.dial(ctx, keeping{})
	if err != nil {
		return "", err
	}
	defer conn.Close() // only the SDK's client; the session stays
	id, loaded, err := u.session.LoadOrStore(ctx, u.name, []byte(conn.ID()))
	if err != nil || loaded {
		endUpstream(ctx, u.url, conn.ID())
	}
	return string(id), err
}

// keeping is a transport that does not end the session when the SDK's client is
// closed.
type keeping struct{}

func (keeping) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodDelete {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
	}
	return http.DefaultTransport.RoundTrip(req)
}

// callShared passes a call on to the session that all replicas share. The SDK's
// client does not do for that: each replica's would number its requests 1, 2, 3,
// and the upstream refuses a second request 3 while the first one runs.
func (u *upstream) callShared(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
	session, err := u.sharedID(ctx)
	if err != nil {
		return nil, u.away(err)
	}
	id := rand.Text()
	resp, err := u.post(ctx, session, map[string]any{
		"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": args},
	})
	if err != nil && ctx.Err() != nil {
		u.cancel(session, id)
	}
	if err != nil {
		return nil, u.away(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, errors.New("upstream " + u.name + " has lost its session")
	case resp.StatusCode != http.StatusOK:
		return nil, u.away(errors.New(resp.Status))
	}
	res, err := readResult(resp, id)
	if err != nil && ctx.Err() != nil {
		u.cancel(session, id)
	}
	return res, err
}

// cancel tells the upstream that nobody waits for a call any more: a connection
// that breaks does not say so.
func (u *upstream) cancel(session, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	resp, err := u.post(ctx, session, map[string]any{
		"jsonrpc": "2.0", "method": "notifications/cancelled", "params": map[string]any{"requestId": id},
	})
	if err == nil {
		_ = resp.Body.Close()
	}
}

func (u *upstream) post(ctx context.Context, session string, message any) (*http.Response, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := upstreamRequest(ctx, http.MethodPost, u.url, session, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(req)
}

func upstreamRequest(ctx context.Context, method, url, session string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", session)
	req.Header.Set("Mcp-Protocol-Version", protocolVersion)
	return req, nil
}

// maxMessage bounds a message of an upstream.
const maxMessage = 16 << 20

// readResult reads the answer to a call: a JSON message, or the one of a stream
// that has the call's ID.
func readResult(resp *http.Response, id string) (*mcp.CallToolResult, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		data, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
		if err != nil {
			return nil, err
		}
		res, _, err := parseResult(data, id)
		return res, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxMessage)
	var data []byte
	for lines.Scan() {
		if line, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")); ok {
			data = append(append(data, line...), '\n')
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		if res, found, err := parseResult(data, id); found {
			return res, err
		}
		data = data[:0]
	}
	return nil, fmt.Errorf("the upstream's stream has ended without an answer: %w", lines.Err())
}

func parseResult(data []byte, id string) (res *mcp.CallToolResult, found bool, err error) {
	var message struct {
		ID     any             `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *jsonrpc.Error  `json:"error"`
	}
	switch err := json.Unmarshal(data, &message); {
	case err != nil:
		return nil, false, err
	case message.ID != id:
		return nil, false, errors.New("the upstream answered something else")
	case message.Error != nil:
		return nil, true, message.Error
	}
	res = new(mcp.CallToolResult)
	return res, true, json.Unmarshal(message.Result, res)
}

// ended is called when a session was closed here: what it has at upstreams is
// closed as well. Sessions that expire are not announced; those at upstreams expire
// by themselves.
func (g *gateway) ended(ctx context.Context, s *sessionshare.Session) {
	for name := range g.stateful {
		if id, found, err := s.Load(ctx, name); err != nil {
			g.log.Warn("a session at an upstream is left to expire", "session", s.Digest(), "upstream", name, "error", err)
		} else if found {
			endUpstream(ctx, g.upstreams[name], string(id))
		}
	}
}

// endUpstream closes a session at an upstream, as well as it can be done.
func endUpstream(ctx context.Context, url, session string) {
	req, err := upstreamRequest(ctx, http.MethodDelete, url, session, nil)
	if err != nil {
		return
	}
	if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
	}
}
