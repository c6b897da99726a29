//go:build unix

package storelab

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// skewEnv says by how many seconds the wall clock of a process is off that was
// built with the overlay, or started with the preloaded library.
const skewEnv = "STORELAB_SKEW"

// A skewed set of programs: their wall clocks can be set off, and their monotonic
// clocks, timers and deadlines stay right, as on a machine with a wrong clock.
type skewed struct {
	binary  string // this one
	ferret  string
	preload string // for programs in C
}

func buildSkewed(t *testing.T) skewed {
	t.Helper()
	// Not t.TempDir: PostgreSQL's user has to read the library.
	dir, err := os.MkdirTemp("", "storelab-skew-")
	must(t, dir, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, dir, os.Chmod(dir, 0o755))
	s := skewed{filepath.Join(dir, "storelab"), filepath.Join(dir, "ferret"), filepath.Join(dir, "skew.so")}
	run(t, ".", "gcc", "-shared", "-fPIC", "-O1", "-o", s.preload, "testdata/skew.c")
	overlay := writeOverlay(t, dir)
	run(t, ".", "go", "test", "-c", "-overlay", overlay, "-o", s.binary, ".")
	run(t, ferretModule, "go", "build", "-overlay", overlay, "-o", s.ferret, "./server")
	date := exec.Command("date", "+%s")
	date.Env = append(os.Environ(), "LD_PRELOAD="+s.preload, skewEnv+"=3600")
	out, err := date.Output()
	must(t, out, err)
	checkSkew(t, string(out), time.Hour)
	return s
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// writeOverlay makes a copy of package time whose Now is off.
func writeOverlay(t *testing.T, dir string) string {
	t.Helper()
	original := filepath.Join(runtime.GOROOT(), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	must(t, source, err)
	const begin = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), begin) != 1 {
		t.Fatal("time.Now of this version of Go is not as this test knows it")
	}
	patched := strings.Replace(string(source), begin, begin+"\tsec += labSkew\n", 1)
	const added = `package time

import "syscall"

var labSkew = func() (n int64) {
	s, _ := syscall.Getenv("` + skewEnv + `")
	sign := int64(1)
	for _, c := range s {
		if c == '-' {
			sign = -1
		} else {
			n = 10*n + int64(c-'0')
		}
	}
	return sign * n
}()
`
	replace := map[string]string{original: filepath.Join(dir, "time.go"), filepath.Join(filepath.Dir(original), "labskew.go"): filepath.Join(dir, "labskew.go")}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, overlay, err)
	for name, content := range map[string]string{"time.go": patched, "labskew.go": added, "overlay.json": string(overlay)} {
		must(t, name, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return filepath.Join(dir, "overlay.json")
}

// start starts the server of a store with its clock off.
func (s skewed) start(t *testing.T, b backend, skew time.Duration) (addr string) {
	t.Helper()
	env := skewEnv + "=" + seconds(skew)
	ours := func(program string, args ...string) {
		startProcess(t, func() *exec.Cmd {
			cmd := exec.Command(program, args...)
			cmd.Env = append(os.Environ(), env, childEnv+"=nats:"+addr+"|"+t.TempDir())
			return cmd
		})
	}
	switch b.name {
	case "NATS":
		addr = freeAddr(t)
		ours(s.binary)
	case "FerretDB":
		addr = freeAddr(t)
		ours(s.ferret, addr, t.TempDir())
	default:
		// It is inherited by the server, and does nothing to this process.
		os.Setenv("LD_PRELOAD", s.preload)
		os.Setenv(skewEnv, seconds(skew))
		defer os.Unsetenv("LD_PRELOAD")
		defer os.Unsetenv(skewEnv)
		_, addr = b.start(t)
	}
	checkSkew(t, serverClock(t, b.name, addr), skew)
	return addr
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

// replicaEnv makes TestServeReplica a replica: the store, its address, and on
// which address it listens.
const replicaEnv = "STORELAB_REPLICA"

// replica starts a replica whose clock is off, as a process of its own.
func (s skewed) replica(t *testing.T, b backend, addr string, skew time.Duration) *replica {
	t.Helper()
	own := freeAddr(t)
	startProcess(t, func() *exec.Cmd {
		cmd := exec.Command(s.binary, "-test.run=^TestServeReplica$")
		cmd.Env = append(os.Environ(), replicaEnv+"="+b.name+"|"+addr+"|"+own, skewEnv+"="+seconds(skew))
		return cmd
	})
	resp, err := http.Get("http://" + own + "/now")
	must(t, resp, err)
	defer resp.Body.Close()
	var now string
	_, err = fmt.Fscan(resp.Body, &now)
	must(t, now, err)
	checkSkew(t, now, skew)
	to := &url.URL{Scheme: "http", Host: own}
	return &replica{handler: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}}
}

// checkSkew checks that a clock shows what it should: else nothing is tested.
func checkSkew(t *testing.T, shown string, skew time.Duration) {
	t.Helper()
	unix, err := strconv.ParseInt(strings.TrimSpace(shown), 10, 64)
	must(t, unix, err)
	if off := time.Until(time.Unix(unix, 0)) - skew; off.Abs() > 10*time.Second {
		t.Fatalf("a clock that should be %v off is %v off", skew, off+skew)
	}
}

// TestServeReplica is no test, but the replica that TestClocks starts. It ends
// by being killed.
func TestServeReplica(t *testing.T) {
	name, rest, ok := strings.Cut(os.Getenv(replicaEnv), "|")
	if !ok {
		return
	}
	addr, own, _ := strings.Cut(rest, "|")
	for _, b := range networked {
		if b.name != name {
			continue
		}
		r := newReplica(t, clockOptions(b.open(t, addr)))
		mux := http.NewServeMux()
		mux.Handle("/mcp", r.handler)
		mux.HandleFunc("/now", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, time.Now().Unix()) })
		l, err := net.Listen("tcp", own)
		must(t, l, err)
		fmt.Println("ready")
		t.Fatal(http.Serve(l, mux))
	}
}

// Short lives, so that a clock that is off shows soon.
const (
	clockIdle  = 6 * time.Second
	clockTouch = time.Second
)

func clockOptions(store sessionshare.SharedStore) sessionshare.Options {
	return sessionshare.Options{Store: store, IdleTimeout: clockIdle, TouchInterval: clockTouch, RecheckInterval: recheckInterval}
}
