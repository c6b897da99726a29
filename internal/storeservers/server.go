//go:build unix

// Package storeservers starts the servers that stores are tested against: real
// ones, on free loopback ports, in temporary directories, ended with the test.
// They can be stopped, killed and started again. Nothing but tests imports it.
package storeservers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Server is a child of this process.
type Server struct {
	Addr string // host:port
	URL  string // as the adapters' clients take it
	Dir  string // its files, which outlive Kill

	tb      testing.TB
	command func() *exec.Cmd
	ready   func() bool
	log     string
	cmd     *exec.Cmd     // nil while it does not run
	exited  chan struct{} // closed when cmd has been waited for
}

// Required reports whether a missing server is a failure, as it is in CI.
func Required() bool {
	return os.Getenv("CI") == "true" || os.Getenv("SESSIONSHARE_REQUIRE_SERVERS") == "1"
}

// Missing skips the test, or fails it where servers are required. how is the
// line that gets the server.
func Missing(tb testing.TB, server, how string) {
	tb.Helper()
	if Required() {
		tb.Fatalf("%s is not installed, and CI or SESSIONSHARE_REQUIRE_SERVERS asks for it: %s", server, how)
	}
	tb.Skipf("%s is not installed, so this suite was skipped. To run it: %s", server, how)
}

// start starts the server for the first time and ends it with the test.
func start(tb testing.TB, s *Server) *Server {
	tb.Helper()
	s.tb, s.log = tb, filepath.Join(s.Dir, "log")
	tb.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Restart starts a server that was killed, with the files and the address that
// it had, and waits until it answers.
func (s *Server) Restart() {
	s.tb.Helper()
	if s.cmd != nil {
		s.tb.Fatal("storeservers: the server is running")
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer log.Close()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.Dir
	if err := cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	exited := make(chan struct{})
	s.cmd, s.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // it is killed, so there is always an error
		close(exited)
	}()
	for end := time.Now().Add(20 * time.Second); !s.ready(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-exited:
			s.tb.Fatalf("storeservers: %s ended at once:\n%s", cmd.Path, s.tail())
		default:
		}
		if time.Now().After(end) {
			s.tb.Fatalf("storeservers: %s does not answer:\n%s", cmd.Path, s.tail())
		}
	}
}

// Stop halts the server and its children in the middle of what they do, as a
// machine that hangs does: connections stay open, nobody answers.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont lets a stopped server go on.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

// Kill ends the server without any warning (SIGKILL), stopped or not.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	s.signal(syscall.SIGKILL)
	<-s.exited
	s.cmd = nil
}

// signal goes to the server first, so that it has no further children, and
// then to those that it has.
func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if s.cmd == nil {
		s.tb.Fatal("storeservers: the server does not run")
	}
	pid := s.cmd.Process.Pid
	children := childrenOf(pid)
	_ = syscall.Kill(pid, sig) // gone already is as good
	for _, child := range append(children, childrenOf(pid)...) {
		_ = syscall.Kill(child, sig)
	}
}

// childrenOf returns the children of a process. PostgreSQL's are process
// groups of their own, so a group does not name them.
func childrenOf(parent int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid ..., and the name may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				children = append(children, pid)
			}
		}
	}
	return children
}

func (s *Server) tail() string {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// freeAddr returns a loopback address on which nobody listens.
func freeAddr(tb testing.TB) (addr, port string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	addr = l.Addr().String()
	return addr, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}
