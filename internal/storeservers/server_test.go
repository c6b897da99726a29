//go:build unix

package storeservers

import (
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestRedis(t *testing.T)    { lifeOf(t, Redis(t)) }
func TestPostgres(t *testing.T) { lifeOf(t, Postgres(t)) }

// lifeOf checks what fault tests rest on.
func lifeOf(t *testing.T, s *Server) {
	s.Stop()
	if states(t, s) != "T" {
		t.Errorf("processes of a stopped server are in state %s, want all T", states(t, s))
	}
	s.Cont()
	if strings.Contains(states(t, s), "T") {
		t.Errorf("processes of a resumed server are in state %s", states(t, s))
	}
	s.Kill()
	if conn, err := net.DialTimeout("tcp", s.Addr, time.Second); err == nil {
		conn.Close()
		t.Error("a killed server accepts connections")
	}
	s.Restart()
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	s.Stop()
	s.Kill() // also when it is stopped
}

// states returns the states that the server and its children are in.
func states(t *testing.T, s *Server) string {
	t.Helper()
	time.Sleep(20 * time.Millisecond) // a signal takes its time
	seen := map[string]bool{}
	for _, pid := range append(childrenOf(s.cmd.Process.Pid), s.cmd.Process.Pid) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			t.Skip("no /proc here")
		}
		seen[strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), "")
}
