//go:build unix

package storelab

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"
)

const (
	docsFile  = "../docs/STORES.md"
	chartFile = "../docs/stores.svg"
)

// writeDocs replaces the marked sections of docs/STORES.md by what this run has
// measured, and leaves those alone of which it has measured nothing.
func writeDocs() error {
	text, err := os.ReadFile(docsFile)
	if err != nil {
		return err
	}
	if len(faultFigures) > 0 {
		if text, err = section(text, "faults", faultTable()); err != nil {
			return err
		}
	}
	if len(lateNotes) > 0 {
		if text, err = section(text, "late", lateTable()); err != nil {
			return err
		}
	}
	if len(clockNotes) > 0 {
		if text, err = section(text, "clocks", clockText()); err != nil {
			return err
		}
	}
	if len(askFigures) > 0 {
		table := "| store | answered at the replica that asks | at another one |\n|---|--:|--:|\n" + strings.Join(askFigures, "\n") + "\n"
		if text, err = section(text, "asks", table); err != nil {
			return err
		}
	}
	if len(speedFigures) > 0 {
		if text, err = section(text, "speed", speedTable()+"\n"+libraryTable()); err != nil {
			return err
		}
		if text, err = section(text, "trips", tripTable()); err != nil {
			return err
		}
		if err := drawChart(chartFile, speedFigures); err != nil {
			return err
		}
	}
	return os.WriteFile(docsFile, text, 0o644)
}

// section replaces what stands between <!-- storelab NAME --> and <!-- end -->.
func section(text []byte, name, content string) ([]byte, error) {
	begin, end := []byte("<!-- storelab "+name+" -->\n"), []byte("<!-- end -->")
	before, rest, ok := bytes.Cut(text, begin)
	if !ok {
		return nil, fmt.Errorf("%s has no section %q", docsFile, name)
	}
	_, after, ok := bytes.Cut(rest, end)
	if !ok {
		return nil, fmt.Errorf("section %q of %s does not end", name, docsFile)
	}
	measured := fmt.Sprintf("Measured %s: %s.\n\n", time.Now().UTC().Format("2006-01-02"), machine())
	if name == "trips" {
		measured = ""
	}
	return bytes.Join([][]byte{before, begin, []byte(measured + content), end, after}, nil), nil
}

// machine says on what the figures were measured, and what else it had to do.
func machine() string {
	model, load := "an unknown processor", "unknown"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); m != nil {
			model = string(m[1])
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(b))[:3], ", ")
	}
	return fmt.Sprintf("%s, %s, %d cores of %s shared by clients, replicas and server, files on %s, load average at the end %s (1, 5, 15 minutes)",
		runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), model, fileSystem(), load)
}

// fileSystem is that of the folder in which the servers keep their files.
func fileSystem() string {
	out, err := exec.Command("df", "--output=fstype", os.TempDir()).Output()
	if _, kind, ok := strings.Cut(string(out), "\n"); err == nil && ok {
		return strings.TrimSpace(kind)
	}
	return "an unknown file system"
}

func faultTable() string {
	var b strings.Builder
	fmt.Fprintln(&b, "| store | fault | requests | 503 | tool errors | 404 before shared | failed store calls | held | slowest answer | stores back after | last 503 after | all shared after | open / closed sessions at the end |")
	fmt.Fprintln(&b, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, f := range faultFigures {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d | %s | %s | %s | %s | %d / %d |\n", f.store, f.fault, f.requests, f.refused, f.toolErrors,
			f.unknown, f.storeErrors, f.held, short(f.slowest), short(f.stores), cmp.Or(short(f.clients), "-"), short(f.shared), f.open, f.closed)
	}
	return b.String()
}

func lateTable() string {
	var b strings.Builder
	fmt.Fprintln(&b, "| store | records written late, after the close | served after that |")
	fmt.Fprintln(&b, "|---|--:|--:|")
	for _, n := range lateNotes {
		fmt.Fprintf(&b, "| %s | %d of %d | 0 |\n", n.store, n.late, n.tried)
	}
	return b.String()
}

func clockText() string {
	return "Three replicas, of which one is an hour ahead, one an hour behind and one right, with IdleTimeout 6 s; the server's own clock an hour off as well. " +
		"Sessions in use went on past their IdleTimeout, one that was idle for half of it was still there, idle ones ended within 3 s of it, and deleted ones stayed deleted. " +
		"Passed (server's clock): " + strings.Join(clockNotes, ", ") + ".\n"
}

func speedTable() string {
	var b strings.Builder
	header, line := "| store |", "|---|"
	for _, op := range operations {
		header += fmt.Sprintf(" %s, 1 | %s, %d |", op.name, op.name, manyCalls)
		line += "--:|--:|"
	}
	fmt.Fprintf(&b, "%s\n%s\n", header, line)
	for _, s := range speedStores() {
		row := "| " + s.name + " |"
		for _, op := range operations {
			row += " " + cell(s.name, op.name, 1) + " | " + cell(s.name, op.name, manyCalls) + " |"
		}
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

func libraryTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| store | %s |\n|---|%s\n", strings.Join(lifeOps, " | "), strings.Repeat("--:|", len(lifeOps)))
	for _, s := range speedStores() {
		row := "| " + s.name + " |"
		for _, op := range lifeOps {
			row += " " + cell(s.name, op, 0) + " |"
		}
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

func tripTable() string {
	var b strings.Builder
	var names []string
	for _, op := range operations {
		names = append(names, op.name)
	}
	names = append(names, lifeOps...)
	fmt.Fprintf(&b, "| store | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("--:|", len(names)))
	for _, s := range networked {
		row := "| " + s.name + " |"
		for _, op := range names {
			value := "?"
			for _, f := range tripFigures {
				if f.store == s.name && f.op == op {
					value = fmt.Sprint(f.trips)
				}
			}
			row += " " + value + " |"
		}
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

// cell is p50 and p99 of one operation.
func cell(store, op string, goroutines int) string {
	for _, f := range speedFigures {
		if f.store == store && f.op == op && f.goroutines == goroutines {
			return short(f.p50) + " / " + short(f.p99)
		}
	}
	return "?"
}

// short writes a duration with two digits, or "" for none.
func short(d time.Duration) string {
	unit, name := time.Microsecond, "µs"
	switch {
	case d == 0:
		return ""
	case d >= time.Second:
		unit, name = time.Second, "s"
	case d >= time.Millisecond:
		unit, name = time.Millisecond, "ms"
	}
	v := float64(d) / float64(unit)
	if v < 10 {
		return fmt.Sprintf("%.1f %s", v, name)
	}
	return fmt.Sprintf("%.0f %s", v, name)
}
