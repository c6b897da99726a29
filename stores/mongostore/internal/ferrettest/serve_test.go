package ferrettest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is where the server is, once it is built.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ferrettest")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "server")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds the server: a process of its own can be stopped and killed.
var build = sync.OnceValue(func() error {
	if out, err := exec.Command("go", "build", "-o", program, "./server").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
})

// A process is one FerretDB.
type process struct {
	address, dir string
	cmd          *exec.Cmd
}

// startServer starts a server of its own for a test. Where there is none to be
// had the test is skipped, unless somebody relies on it.
func startServer(t *testing.T) *process {
	t.Helper()
	if err := build(); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("SESSIONSHARE_REQUIRE_SERVERS") == "1" {
			t.Fatal(err)
		}
		t.Skip("no server, so this suite was skipped. Run it with the go command on the PATH, which builds one, "+
			"or name yours with SESSIONSHARE_TEST_MONGO_URL: ", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{address: l.Addr().String(), dir: t.TempDir()}
	l.Close()
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(program, p.address, p.dir)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.cmd
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the server: %q, %v", line, err)
	}
}

func (p *process) url() string { return "mongodb://" + p.address + "/" }

// kill ends the server as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// stall stops the server as SIGSTOP does.
func (p *process) stall() (resume func()) {
	p.cmd.Process.Signal(syscall.SIGSTOP)
	stopped(p.cmd.Process.Pid)
	return func() { p.cmd.Process.Signal(syscall.SIGCONT) }
}

func untilWorks(t *testing.T, f func() error) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

// stopped waits until a process that was sent SIGSTOP has stopped: the signal
// takes a moment to arrive.
func stopped(pid int) {
	for range 1000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return // there is no /proc, or it has stopped
		}
		time.Sleep(time.Millisecond)
	}
}
