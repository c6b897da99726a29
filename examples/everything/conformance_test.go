package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A suite is the official one in some version.
type suite struct {
	version string
	node    int      // the oldest Node it runs on; npm has newer ones than the machine
	args    []string // of a run of all scenarios
}

// The scenarios of 0.1.13 are those of protocol version 2025-11-25 and older; later
// versions also have others, and choose.
var suites = []suite{
	{version: "0.1.13", node: 20},
	{version: "0.1.16", node: 22, args: []string{"--spec-version", "2025-11-25"}},
}

// Every scenario of the official suite that passes on one replica of the bare SDK
// passes on three that share sessions. It needs npm, which fetches the suite, so it
// is run where SESSIONSHARE_CONFORMANCE=1 asks for it, as .ci/run does.
func TestConformance(t *testing.T) {
	if os.Getenv("SESSIONSHARE_CONFORMANCE") != "1" {
		t.Skip("to run the official suite, which npm fetches: SESSIONSHARE_CONFORMANCE=1 go test -v -run Conformance ./examples/everything")
	}
	for _, suite := range suites {
		t.Run(suite.version, func(t *testing.T) {
			s := install(t, suite)
			t.Run("streams, new connections", func(t *testing.T) { s.compare(t, setup{}) })
			t.Run("streams, kept connections", func(t *testing.T) { s.compare(t, setup{kept: true}) })
			t.Run("JSON answers", func(t *testing.T) { s.compare(t, setup{json: true}) })
		})
	}
}

// compare runs the suite against one bare replica and against three that share.
func (s installed) compare(t *testing.T, mode setup) {
	one, three := mode, mode
	one.bare, three.replicas = true, 3
	bare, shared := s.run(t, one), s.run(t, three)
	require.GreaterOrEqual(t, len(bare), 32, "scenarios")
	t.Log(table(bare, shared))
	for name, b := range bare {
		if b.failed == 0 {
			require.Zero(t, shared[name].failed, "%s passes on one bare replica, and fails on three", name)
			require.GreaterOrEqual(t, shared[name].passed, b.passed, "%s checks less on three replicas", name)
		}
		require.Zero(t, b.failed, "%s fails on one bare replica", name)
	}
}

// An outcome is how many checks of a scenario passed and failed.
type outcome struct{ passed, failed int }

func table(bare, shared map[string]outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-32s %14s %14s\n", "passed/failed", "one, bare", "three, shared")
	var sum [2]outcome
	for _, name := range slices.Sorted(maps.Keys(bare)) {
		fmt.Fprintf(&b, "%-32s", name)
		for i, o := range []outcome{bare[name], shared[name]} {
			fmt.Fprintf(&b, " %11d/%-2d", o.passed, o.failed)
			sum[i].passed += o.passed
			sum[i].failed += o.failed
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%-32s %11d/%-2d %11d/%-2d\n", "all", sum[0].passed, sum[0].failed, sum[1].passed, sum[1].failed)
	return b.String()
}

// installed is a suite, as npm has put it into a folder.
type installed struct {
	suite
	command []string
}

func install(t *testing.T, suite suite) installed {
	t.Helper()
	dir, node := t.TempDir(), "node"
	packages := []string{"@modelcontextprotocol/conformance@" + suite.version}
	if nodeVersion(t) < suite.node {
		newer := fmt.Sprintf("node-%s-%s", runtime.GOOS, strings.Replace(runtime.GOARCH, "amd64", "x64", 1))
		packages = append(packages, fmt.Sprintf("%s@%d", newer, suite.node))
		node = filepath.Join(dir, "node_modules", newer, "bin", "node")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts"}, packages...)
	out, err := exec.CommandContext(ctx, "npm", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return installed{suite, []string{node, filepath.Join(dir, "node_modules", ".bin", "conformance")}}
}

// nodeVersion is the major version of the Node of this machine.
func nodeVersion(t *testing.T) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "node", "--version").Output()
	require.NoError(t, err)
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	n, err := strconv.Atoi(major)
	require.NoError(t, err)
	return n
}

// run runs all scenarios against a server, and those that fail twice more: where
// answers are JSON, the last progress of a call and its answer come on two
// connections, and race also on the bare SDK.
func (s installed) run(t *testing.T, setup setup) map[string]outcome {
	t.Helper()
	setup.log = slog.New(slog.DiscardHandler)
	c, err := setup.start()
	require.NoError(t, err)
	defer c.Close()
	got := s.scenarios(t, c.URL()+"/mcp", "")
	for range 2 {
		for name, o := range got {
			if o.failed > 0 {
				t.Logf("%s failed on %d replicas, and is tried again", name, max(setup.replicas, 1))
				got[name] = s.scenarios(t, c.URL()+"/mcp", name)[name]
			}
		}
	}
	return got
}

var (
	// A line of the summary of several scenarios, and the one of a single scenario.
	manyLine = regexp.MustCompile(`(?m)^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed`)
	oneLine  = regexp.MustCompile(`(?m)^Passed: (\d+)/\d+, (\d+) failed`)
)

// scenarios runs one scenario, or all if name is "".
func (s installed) scenarios(t *testing.T, url, name string) map[string]outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := append(slices.Clone(s.command[1:]), "server", "--url", url, "--output-dir", t.TempDir())
	if name == "" {
		args = append(append(args, "--suite", "all"), s.args...)
	} else {
		args = append(args, "--scenario", name)
	}
	// It exits with 1 if a check failed, which is read from its output.
	out, err := exec.CommandContext(ctx, s.command[0], args...).CombinedOutput()
	require.NoError(t, ctx.Err(), "%s", out)
	found := manyLine.FindAllStringSubmatch(string(out), -1)
	if name != "" {
		if one := oneLine.FindStringSubmatch(string(out)); one != nil {
			found = [][]string{{"", name, one[1], one[2]}}
		}
	}
	require.NotEmpty(t, found, "%v: %s", err, out)
	got := map[string]outcome{}
	for _, m := range found {
		passed, err1 := strconv.Atoi(m[2])
		failed, err2 := strconv.Atoi(m[3])
		require.NoError(t, cmp.Or(err1, err2))
		got[m[1]] = outcome{passed, failed}
		if failed > 0 && name != "" {
			t.Logf("%s", out)
		}
	}
	return got
}
