//go:build unix

package storelab

import (
	"bufio"
	"errors"
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

	"github.com/nats-io/nats-server/v2/server"
	"github.com/sessionshare/sessionshare/internal/storeservers"
)

// A storeServer is the process on which a store rests.
type storeServer interface {
	Stop()    // SIGSTOP
	Cont()    // SIGCONT
	Kill()    // SIGKILL
	Restart() // with the files and the address that it had
}

// A process is a server of ours: it prints "ready" when it can be used.
type process struct {
	t       testing.TB
	command func() *exec.Cmd
	cmd     *exec.Cmd
}

func startProcess(t testing.TB, command func() *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, command: command}
	t.Cleanup(p.Kill)
	p.Restart()
	return p
}

func (p *process) Restart() {
	p.t.Helper()
	p.cmd = p.command()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		p.t.Fatalf("%s: %q, %v", p.cmd.Path, line, err)
	}
}

func (p *process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	// The signal takes a moment to arrive.
	for range 1000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return // there is no /proc, or it has stopped
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *process) Cont() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

func (p *process) Kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// childOf makes this binary, to be started again.
func childOf(name, arg string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+name+":"+arg)
		return cmd
	}
}

func startNATS(t testing.TB) (storeServer, string) {
	addr, dir := freeAddr(t), t.TempDir()
	return startProcess(t, childOf("nats", addr+"|"+dir)), addr
}

func serveNATS(arg string) error {
	addr, dir, _ := strings.Cut(arg, "|")
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: tcp.Port, StoreDir: dir, JetStream: true, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("not ready")
	}
	fmt.Println("ready")
	select {}
}

// ferretModule is where FerretDB's own module is, which only mongostore may import.
const ferretModule = "../stores/mongostore/internal/ferrettest"

var ferretDir string // removed by TestMain

// buildFerret builds FerretDB, without the race detector, once.
var buildFerret = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "storelab-ferret-")
	if err != nil {
		return "", err
	}
	ferretDir = dir
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "server"), "./server")
	cmd.Dir = ferretModule
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return filepath.Join(dir, "server"), nil
})

func startFerret(t testing.TB) (storeServer, string) {
	program, err := buildFerret()
	if err != nil {
		storeservers.Missing(t, "FerretDB", "put the go command on the PATH, which builds it: "+err.Error())
	}
	addr, dir := freeAddr(t), t.TempDir()
	return startProcess(t, func() *exec.Cmd { return exec.Command(program, addr, dir) }), addr
}

func startRedis(t testing.TB) (storeServer, string) {
	// A server that keeps nothing loses everything when it is killed. With
	// everysec the answer may go out before the write when the disk is slow.
	s := storeservers.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	return s, s.Addr
}

func startPostgres(t testing.TB) (storeServer, string) {
	s := storeservers.Postgres(t)
	return s, s.Addr
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
