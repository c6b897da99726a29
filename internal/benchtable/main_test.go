package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	in := `goos: linux
cpu: Some CPU
BenchmarkCall/static/bare-2     	    3818	     100 ns/op	  83 allocs/op
BenchmarkCall/static/bare-2     	    3818	     120 ns/op	  83 allocs/op
BenchmarkCall/static/shared-2   	    3342	     103.5 ns/op	  85 allocs/op
BenchmarkManyParallel/shared-4  	    3342	     50 ns/op
BenchmarkBody/1MiB-string/bare  	    20	     9 ns/op
PASS
`
	var out strings.Builder
	require.NoError(t, run(strings.NewReader(in), &out))
	require.Equal(t, `Some CPU

| benchmark | unit | bare SDK | with sessionshare | difference |
|---|---|---:|---:|---:|
| Call/static | ns/op | 100 | 103.5 | +3.5 (+3.5 %) |
| Call/static | allocs/op | 83 | 85 | +2 (+2.4 %) |
| ManyParallel, GOMAXPROCS=4 | ns/op |  | 50 |  |
| Body/1MiB-string | ns/op | 9 |  |  |
`, out.String())
	require.Error(t, run(strings.NewReader("PASS\n"), &out))
	require.Error(t, run(strings.NewReader("--- FAIL: BenchmarkX\n"), &out))
}
