package sessionshare

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzCopy is a copy that can rewrite, and nothing else.
func fuzzCopy(t require.TestingT) *hostedCopy {
	r, err := New(Options{})
	require.NoError(t, err)
	c := &hostedCopy{Session: Session{r: r}, tag: strings.Repeat("a", copyTag)}
	c.Session = Session{r: r, c: c, digest: digestOf("x"), rec: &record{Key: make([]byte, recordKey)}}
	return c
}

// Events are split and rewritten alike wherever the writes are cut.
func FuzzSSE(f *testing.F) {
	question := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":"t"}}}`
	f.Add([]byte("event: message\ndata: "+question+"\n\nevent: message\nid: _3\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n: ok\n\n"), uint16(3), uint16(60))
	f.Add([]byte("event: close\nretry: 5\ndata: \n\nevent: prime\nid: X_0\ndata: \n\n\n\n\n"), uint16(0), uint16(9))
	f.Add([]byte(`data: {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`+"\n\n"), uint16(80), uint16(81))
	c := fuzzCopy(f)
	f.Fuzz(func(t *testing.T, b []byte, x, y uint16) {
		rewrite := func(writes ...[]byte) (out []byte, events int) {
			var s sseSplitter
			for _, w := range writes {
				require.NoError(t, s.split(bytes.Clone(w), func(text []byte) error {
					require.True(t, bytes.HasSuffix(text, eventEnd))
					rewritten, _ := c.clientEvent(text)
					out = append(out, rewritten...)
					events++
					return nil
				}))
			}
			return append(out, s.partial...), events
		}
		i := int(x) % (len(b) + 1)
		j := i + int(y)%(len(b)-i+1)
		whole, n := rewrite(b)
		cut, m := rewrite(b[:i], b[i:j], b[j:])
		require.Equal(t, whole, cut)
		require.Equal(t, n, m)
		single := make([][]byte, 0, len(b))
		for k := range b {
			single = append(single, b[k:k+1])
		}
		bytewise, _ := rewrite(single...)
		require.Equal(t, whole, bytewise)
		// What is rewritten once is not rewritten again: its ID is no number.
		if twice, _ := rewrite(whole); !bytes.Contains(b, []byte("id: _")) {
			require.Equal(t, whole, twice)
		}
	})
}

// unseal takes what sealed has made, for this session, and nothing else.
func FuzzUnseal(f *testing.F) {
	c := fuzzCopy(f)
	for _, what := range []string{"1", "pInEi", "", "-1"} {
		f.Add(c.sealed(what), what)
	}
	f.Add([]byte(`"a.1.b"`), "1")
	f.Add([]byte(`"`), "..")
	other := &record{Key: bytes.Repeat([]byte{1}, recordKey)}
	f.Fuzz(func(t *testing.T, quoted []byte, what string) {
		if tag, got, ok := c.rec.unseal(quoted); ok {
			require.Equal(t, `"`+tag+"."+got+"."+c.rec.mac(tag, got)+`"`, `"`+string(unquote(quoted))+`"`)
			_, _, ok = other.unseal(quoted)
			require.False(t, ok, "another session's")
		}
		if strings.ContainsAny(what, `."\`) || len(what) > maxToken || strings.ToValidUTF8(what, "") != what || strings.ContainsFunc(what, func(r rune) bool { return r < ' ' }) {
			return
		}
		tag, got, ok := c.rec.unseal(c.sealed(what))
		require.True(t, ok)
		require.Equal(t, c.tag+what, tag+got)
		if sealed := c.sealed(what); len(quoted) > 0 {
			i := 1 + int(quoted[0])%(len(sealed)-2)
			sealed[i] ^= 1
			_, _, ok = c.rec.unseal(sealed)
			require.False(t, ok, "%s", sealed)
		}
	})
}

// A message that is forwarded is the event that the SDK would have written.
func TestEventOf(t *testing.T) {
	data := []byte(`{"jsonrpc":"2.0","method":"notifications/message"}`)
	e := parseEvent(eventOf(data))
	require.Equal(t, string(data), string(e.data))
	require.Empty(t, e.id)
	for _, d := range []string{"", "{", "[]", `{"method":7}`, `{"id":1,"method":"notifications/tools/list_changed"}`,
		`{"method":"notifications/resources/updated","params":{"uri":"` + strings.Repeat("u", maxMergeable) + `"}}`} {
		require.False(t, mergeable([]byte(d)), d)
	}
	for _, m := range []string{"tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"} {
		require.True(t, mergeable([]byte(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/%s","params":{}}`, m))), m)
	}
}
