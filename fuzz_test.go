package sessionshare

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Records: no bytes make decodeRecord panic, and what it accepts is written and
// read back as the same.
func FuzzDecodeRecord(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"v":1}`, `{"v":2}`, `{"v":9,"principal":7}`,
		`{"v":1,"principal":"u","endpoint":"/mcp","incarnation":"i","scope":"AAEC","path":"/mcp","headers":{"X-A":["b","c"]},"protocol":"2025-06-18","idle_ms":1000,"params":{"a":1}}`,
		`{"v":1,"protocol":"p","idle_ms":9223372036854775807,"params":{}}`,
		`{"v":1,"protocol":"p","idle_ms":1,"params":{ "a" : "\u00e9" }}`,
		`{"v":1,"protocol":"p","idle_ms":1,"params":{},"PARAMS":{"b":2},"Protocol":"q"}`,
		"{\"v\":1,\"protocol\":\"p\xff\",\"idle_ms\":1,\"params\":{}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		given := bytes.Clone(b)
		r, err := decodeRecord(b)
		require.Equal(t, given, b, "the store's bytes are left alone")
		if err != nil {
			require.Nil(t, r)
			return
		}
		require.Positive(t, r.idle())
		require.Positive(t, 2*r.idle(), "a mark lives twice as long")
		again, err := r.encode()
		if err != nil {
			return // too large, or not UTF-8: refused at open
		}
		back, err := decodeRecord(again)
		require.NoError(t, err)
		require.Equal(t, r, back)
	})
}

// A record that encode accepts is read back as it was, whatever the host's
// callbacks and the client put into it.
func FuzzEncodeRecord(f *testing.F) {
	f.Add("u", "/mcp", "first", []byte("scope"), "/mcp", "v", "2025-06-18", int64(1000), []byte(initParams))
	f.Add("u\xff", "/\x00", "", []byte{}, "", "", "", int64(-1), []byte(`{"a":"<>&\u2028"}`))
	f.Add("", "", "", []byte(nil), "", "", "p", int64(1), []byte(` {}`))
	f.Add("", "", "", []byte(nil), "", "", "p", int64(1), []byte(`{},"principal":"root"`))
	f.Add("", "", "", []byte(nil), "", "\xff", "p", int64(1), []byte(`{}`))
	f.Fuzz(func(t *testing.T, principal, endpoint, incarnation string, scope []byte, path, value, protocol string, idle int64, params []byte) {
		r := &record{Version: recordVersion, Principal: principal, Endpoint: endpoint, Incarn: incarnation, Scope: scope,
			Path: path, Protocol: protocol, IdleMS: idle, Params: params, Headers: http.Header{"X-A": {value}}}
		b, err := r.encode()
		if err != nil {
			return
		}
		require.True(t, json.Valid(b))
		require.LessOrEqual(t, len(b), MaxValueBytes)
		back, err := decodeRecord(b)
		require.NoError(t, err)
		require.Equal(t, r.binding().Principal, back.Principal)
		require.Equal(t, r.endpoint(), back.endpoint())
		require.True(t, bytes.Equal(r.Scope, back.Scope))
		require.Equal(t, r.Path, back.Path)
		require.Equal(t, r.Headers, back.Headers)
		require.Equal(t, r.Protocol, back.Protocol)
		require.Equal(t, r.IdleMS, back.IdleMS)
		require.Equal(t, string(r.Params), string(back.Params))
	})
}

// Keys: whatever comes in, a key is legal for a SharedStore.
func FuzzKeys(f *testing.F) {
	f.Add("mcp.sessions.", "id", "name", "incarnation")
	f.Add("", "", "", "")
	f.Add(strings.Repeat("x", 64), strings.Repeat("\x00", 300), "\xff", "é/../")
	f.Fuzz(func(t *testing.T, prefix, id, name, incarnation string) {
		if !validPrefix(prefix) {
			return
		}
		k := keyspace{prefix}
		d := digestOf(id)
		keys := []string{k.session(d), k.closed(d), k.endpoint(Endpoint{name, incarnation})}
		for i, key := range keys {
			require.LessOrEqual(t, len(key), MaxKeyBytes)
			require.NotEmpty(t, key)
			require.Empty(t, strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789._-"), "%q", key)
			require.True(t, strings.HasPrefix(key, prefix))
			for _, other := range keys[i+1:] {
				require.NotEqual(t, key, other)
			}
		}
		if len(id) > 8 {
			for _, key := range keys[:2] {
				require.False(t, strings.Contains(strings.TrimPrefix(key, prefix), id) && id != string(d)[:len(id)], "no ID in a key")
			}
		}
		if !strings.Contains(name+incarnation, "\x00") && incarnation != "" {
			require.NotEqual(t, keys[2], k.endpoint(Endpoint{name + incarnation, ""}))
		}
	})
}

// Session IDs: what is accepted can stand in a header, and what is not costs the
// store nothing and is 404.
func FuzzSessionID(f *testing.F) {
	r, err := New(Options{Store: NewMemoryStore()})
	if err != nil {
		f.Fatal(err)
	}
	h := r.Handler(nil, nil)
	for _, s := range []string{"", "a", strings.Repeat("x", 256), strings.Repeat("x", 257), "a b", "é", "a\x00", "\x7f", "~!\"#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		valid := validSessionID(id)
		visible := strings.IndexFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) < 0
		require.Equal(t, len(id) > 0 && len(id) <= maxSessionID && visible, valid)
		require.Equal(t, valid && len(id) >= minNewSessionID, checkNewSessionID(id) == nil)
		if id == "" {
			return
		}
		req := newRequest("POST", "", pingBody)
		req.Header["Mcp-Session-Id"] = []string{id}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		require.Equal(t, 404, w.Code)
		require.Equal(t, bodyGone, w.Body.String())
	})
}

// The scanner sees what the SDK sees: whatever the SDK accepts as a message, or as
// a batch of them, scan finds the same methods, ids and parameters in the same
// number.
func FuzzScan(f *testing.F) {
	for _, p := range probes() {
		if p.method == "POST" && len(p.body) < 4096 {
			f.Add([]byte(p.body))
		}
	}
	for _, s := range []string{
		initBody, `[` + initBody + `,` + pingBody + `]`, `{"jsonrpc":"2.0","id":"\ud800","method":"a\u0000b","params":[1,2]}`,
		`{"jsonrpc":"2.0","method":"x","method":null,"id":1}`, `{"jsonrpc":"2.0","id":1,"id":null,"method":"x"}`,
		`{"jsonrpc":"2.0","id":-0,"method":"x"}`, `{"jsonrpc":"2.0","id":1e2,"method":"x"}`, `{"jsonrpc":"2.0","id":9007199254740993,"method":"x"}`,
		"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"x\xff\"}", `[[` + pingBody + `]]`, `[null]`, ` [ ] `,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":null}`, `{"jsonrpc":"2.0","id":1,"result":{"method":"x"}}`, `[` + pingBody + `] trailing`,
		`{"a":"\\","jsonrpc":"2.0","id":1,"method":"x"}`, `{"a":"\\\"","jsonrpc":"2.0","id":1,"method":"x"}`, "{\"jsonrpc\":\"2.0\"\v,\"id\":1,\"method\":\"x\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		given := bytes.Clone(b)
		s := scan(b)
		s.calls()
		require.Equal(t, given, b)
		want, batch, ok := sdkReads(b)
		if !ok {
			return
		}
		require.True(t, s.ok, "the SDK reads %d messages", len(want))
		require.Equal(t, batch, s.batch)
		var got []*message
		s.each(func(m *message) { got = append(got, m) })
		require.Len(t, got, len(want))
		for i, m := range got {
			sameMessage(t, want[i], m)
		}
	})
}

// The same against the SDK's own handler: of a body that it takes, the methods that
// reach a handler are those that scan sees.
func FuzzScanAgainstHandler(f *testing.F) {
	for _, p := range probes() {
		if p.method == "POST" && len(p.body) < 4096 {
			f.Add([]byte(p.body))
		}
	}
	f.Add([]byte(`[` + pingBody + `,` + greetBody + ` ]x`))
	f.Add([]byte(`[` + pingBody + `,]`))
	f.Add([]byte("[" + pingBody + "\v," + greetBody + "]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		virtual(t, func(t *testing.T) {
			var mu sync.Mutex
			var handled []string
			s, h := sdkServer(sdkID, nil, func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					mu.Lock()
					handled = append(handled, method)
					mu.Unlock()
					return next(ctx, method, req)
				}
			})
			defer closeSessions(s)
			serve(h, newRequest("POST", "", initBody))
			handled = nil
			got := alike(h, probe{method: "POST", body: string(b)}, sdkID)
			synctest.Wait()
			if got.status >= 300 {
				return
			}
			var seen []string
			scanned := scan(b)
			scanned.each(func(m *message) {
				if m.hasMethod {
					seen = append(seen, string(m.method))
				}
			})
			mu.Lock()
			defer mu.Unlock()
			require.Subset(t, seen, handled)
		})
	})
}

func sameMessage(t *testing.T, want jsonrpc.Message, got *message) {
	t.Helper()
	switch want := want.(type) {
	case *jsonrpc.Request:
		require.True(t, got.hasMethod)
		assert.Equal(t, want.Method, string([]rune(string(got.method)))) // what is not UTF-8 is U+FFFD to the SDK
		assert.Equal(t, want.IsCall(), got.call())
		assert.Equal(t, string(want.Params), string(got.params))
		sameID(t, want.ID, got.id)
	case *jsonrpc.Response:
		assert.False(t, got.hasMethod)
		sameID(t, want.ID, got.id)
	}
}

// sameID checks that the raw id is one the SDK takes for want: it stands in
// answers that the library writes itself.
func sameID(t *testing.T, want jsonrpc.ID, got rawID) {
	t.Helper()
	if !want.IsValid() {
		assert.Nil(t, got)
		return
	}
	msg, err := jsonrpc.DecodeMessage([]byte(`{"jsonrpc":"2.0","id":` + string(got) + `,"result":{}}`))
	require.NoError(t, err)
	assert.True(t, reflect.DeepEqual(want, msg.(*jsonrpc.Response).ID), "%s", got)
}

// sdkReads reads b as the SDK's handler does: as a batch if it is one, else as one
// message.
func sdkReads(b []byte) (msgs []jsonrpc.Message, batch, ok bool) {
	if i := skipSpace(b, 0); i < len(b) && b[i] == '[' {
		var raw []json.RawMessage
		if json.NewDecoder(bytes.NewReader(b)).Decode(&raw) != nil || len(raw) == 0 {
			return nil, true, false
		}
		for _, r := range raw {
			m, err := jsonrpc.DecodeMessage(r)
			if err != nil {
				return nil, true, false
			}
			msgs = append(msgs, m)
		}
		return msgs, true, true
	}
	m, err := jsonrpc.DecodeMessage(b)
	return []jsonrpc.Message{m}, false, err == nil
}
