// Command benchtable makes a Markdown table of benchmarks that have a variant
// "bare" and a variant "shared":
//
//	go test -run '^$' -bench . -benchmem -count 5 . | go run ./internal/benchtable
//
// Of several runs of one benchmark the fastest counts: on a machine that does
// other things too, all noise makes slower.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchtable:", err)
		os.Exit(1)
	}
}

// A row is one benchmark in one unit.
type row struct {
	name, unit   string
	bare, shared float64
	has          [2]bool // bare, shared
}

func run(in io.Reader, out io.Writer) error {
	var t table
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "cpu: "):
			fmt.Fprintf(out, "%s\n\n", strings.TrimPrefix(line, "cpu: "))
		case strings.HasPrefix(line, "Benchmark"):
			if err := t.add(strings.Fields(line)); err != nil {
				return err
			}
		case strings.HasPrefix(line, "FAIL"), strings.HasPrefix(line, "---"), strings.HasPrefix(line, "panic"):
			return fmt.Errorf("a benchmark failed: %s", line)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(t.rows) == 0 {
		return fmt.Errorf("no benchmarks on standard input")
	}
	t.print(out)
	return nil
}

type table struct{ rows []*row }

// add takes one line of the output of a benchmark.
func (t *table) add(fields []string) error {
	if len(fields) < 4 || len(fields)%2 != 0 {
		return nil // a name alone, printed before what the benchmark logs
	}
	name := strings.TrimPrefix(fields[0], "Benchmark")
	cpus := 1 // go test names the number of processors unless it is one
	if i := strings.LastIndexByte(name, '-'); i >= 0 {
		if n, err := strconv.Atoi(name[i+1:]); err == nil {
			name, cpus = name[:i], n
		}
	}
	variant := name[strings.LastIndexByte(name, '/')+1:]
	if variant != "bare" && variant != "shared" {
		return nil
	}
	name = strings.TrimSuffix(name, "/"+variant)
	if strings.Contains(name, "Parallel") {
		name += fmt.Sprintf(", GOMAXPROCS=%d", cpus)
	}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return fmt.Errorf("%s: %w", fields[0], err)
		}
		t.row(name, fields[i+1]).note(variant == "shared", v)
	}
	return nil
}

func (t *table) row(name, unit string) *row {
	for _, r := range t.rows {
		if r.name == name && r.unit == unit {
			return r
		}
	}
	r := &row{name: name, unit: unit}
	t.rows = append(t.rows, r)
	return r
}

func (r *row) note(shared bool, v float64) {
	have, i := &r.bare, 0
	if shared {
		have, i = &r.shared, 1
	}
	if !r.has[i] || v < *have {
		*have, r.has[i] = v, true
	}
}

func (t *table) print(out io.Writer) {
	fmt.Fprintln(out, "| benchmark | unit | bare SDK | with sessionshare | difference |")
	fmt.Fprintln(out, "|---|---|---:|---:|---:|")
	for _, r := range t.rows {
		difference := ""
		if r.has[0] && r.has[1] {
			difference = fmt.Sprintf("%+.4g", r.shared-r.bare)
			if r.bare > 0 {
				difference += fmt.Sprintf(" (%+.1f %%)", 100*(r.shared-r.bare)/r.bare)
			}
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", r.name, r.unit, cell(r.has[0], r.bare), cell(r.has[1], r.shared), difference)
	}
}

func cell(has bool, v float64) string {
	if !has {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
