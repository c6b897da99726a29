package sessionshare

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Merging is commutative, associative and idempotent, so that it does not matter
// who reads what when.
func TestMergeIsALattice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func() sessionState {
		s := sessionState{}
		for range rnd.IntN(6) {
			// One writer makes each version once.
			v, w := int64(rnd.IntN(3)), string(rune('a'+rnd.IntN(3)))
			s[fmt.Sprint("uri ", rnd.IntN(4))] = element{Version: v, Writer: w, Off: (v+int64(w[0]))%2 == 0}
		}
		return s
	}
	merged := func(a, b sessionState) sessionState {
		out := maps.Clone(a)
		ahead := out.merge(b)
		// ahead says exactly whether b lacks something.
		for name, e := range out {
			if e.newer(b[name]) {
				require.True(t, ahead)
				return out
			}
		}
		require.False(t, ahead)
		return out
	}
	for range 20_000 {
		a, b, c := random(), random(), random()
		require.Equal(t, merged(a, b), merged(b, a))
		require.Equal(t, merged(a, merged(b, c)), merged(merged(a, b), c))
		require.Equal(t, a, merged(a, a))
	}
}

// What a store returns is merged, whatever it is, and what is encoded decodes.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"level":{"n":1,"w":"a","v":"info"},"uri u":{"n":2,"w":"b","off":true}}`), []byte(`{"roots":{"n":3,"w":"c"}}`))
	f.Add([]byte(`null`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, x, y []byte) {
		a, b := decodeState(x), decodeState(y)
		if a == nil {
			return
		}
		both := maps.Clone(a)
		both.merge(b)
		again := maps.Clone(both)
		require.False(t, again.merge(both))
		require.Equal(t, both, again)
		if enc := both.encode(); enc != nil {
			back := decodeState(enc)
			require.True(t, reflect.DeepEqual(back, decodeState(back.encode())))
			require.LessOrEqual(t, len(enc), maxStateSize)
			require.True(t, json.Valid(enc))
		}
		for _, name := range slices.Sorted(maps.Keys(both)) {
			if body := replayBody(`"x"`, name, both[name], element{}); body != nil {
				require.True(t, scan(body).ok)
				require.True(t, json.Valid(body))
			}
		}
	})
}
