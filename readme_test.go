package sessionshare

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a snippet of the README takes from its surroundings.
const snippetPrelude = `package snippet

import (
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sessionshare/sessionshare"
)

func snippet(store sessionshare.SharedStore, whoSent func(*http.Request) (string, error), impl *mcp.Implementation) error {
%s	return nil
}
`

// What the test of a store of one's own takes from its surroundings.
const storePrelude = `package mystore_test

import (
	"testing"

	"github.com/sessionshare/sessionshare"
)

func newCache(*testing.T) *sessionshare.MemoryStore { return sessionshare.NewMemoryStore() }

func newStore(_ *testing.T, cache *sessionshare.MemoryStore) sessionshare.SharedStore { return cache }
`

// TestReadmeCompiles builds every Go program of the README, and runs its tests.
func TestReadmeCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.GreaterOrEqual(t, len(blocks), 5)

	root, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	replace := map[string]string{}
	add := func(pkg, file, text string) {
		path := filepath.Join(dir, pkg+"_"+file)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		replace[filepath.Join(root, "readmecheck", pkg, file)] = path
	}
	for i, block := range blocks {
		code := block[1]
		if !strings.HasPrefix(code, "package ") {
			code = fmt.Sprintf(snippetPrelude, code)
		}
		formatted, err := format.Source([]byte(code))
		require.NoError(t, err, code)
		if strings.HasPrefix(block[1], "package ") {
			require.Equal(t, string(formatted), block[1], "the README's Go is formatted")
		}
		name := regexp.MustCompile(`package (\w+)`).FindStringSubmatch(code)[1]
		pkg, file := fmt.Sprintf("block%d", i), "block.go"
		if strings.HasSuffix(name, "_test") {
			file = "block_test.go"
		}
		if name == "mystore_test" {
			add(pkg, "prelude_test.go", storePrelude)
		}
		add(pkg, file, code)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o600))
	run := func(name string, args ...string) {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if name != "go" {
			cmd.Dir = dir
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
	}
	for i, block := range blocks {
		pkg, binary := fmt.Sprintf("./readmecheck/block%d", i), filepath.Join(dir, fmt.Sprintf("block%d.bin", i))
		if regexp.MustCompile(`package \w+_test`).MatchString(block[1]) {
			run("go", "test", "-c", "-vet=off", "-buildvcs=false", "-overlay", file, "-o", binary, pkg)
			run(binary, "-test.timeout=60s")
		} else {
			run("go", "build", "-buildvcs=false", "-overlay", file, "-o", binary, pkg)
		}
	}
}

// TestReadmeNamesTestsThatExist keeps the table of guarantees honest.
func TestReadmeNamesTestsThatExist(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var code strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		code.Write(b)
	}
	names := regexp.MustCompile("`(Test\\w+|Fuzz\\w+|Benchmark\\w+)`").FindAllStringSubmatch(string(readme), -1)
	require.Greater(t, len(names), 30)
	for _, name := range names {
		if !strings.Contains(code.String(), "func "+name[1]+"(") {
			t.Errorf("the README names %s, which is not there", name[1])
		}
	}
}
