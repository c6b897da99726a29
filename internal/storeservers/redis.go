//go:build unix

package storeservers

import (
	"bufio"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// InstallRedis is the line that gets Redis on Debian.
const InstallRedis = "apt-get install -y --no-install-recommends redis-server"

// Redis starts a redis-server that keeps nothing on disk, unless args, which
// are added to its command line, say otherwise.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		Missing(tb, "redis-server", InstallRedis)
	}
	addr, port := freeAddr(tb)
	s := &Server{Addr: addr, URL: "redis://" + addr + "/0", Dir: tb.TempDir()}
	s.command = func() *exec.Cmd {
		cmd := exec.Command(binary, append([]string{
			"--port", port, "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no",
		}, args...)...)
		cmd.SysProcAttr = child(nil)
		return cmd
	}
	s.ready = func() bool { return ask(addr, "PING\r\n") == "+PONG" }
	return start(tb, s)
}

// ask sends one line to a server and returns the first line of its answer.
func ask(addr, line string) string {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(line)); err != nil {
		return ""
	}
	answer, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer)
}
