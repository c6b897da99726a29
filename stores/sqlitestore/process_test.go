package sqlitestore_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare/stores/sqlitestore"
)

// The tests need other processes on the same file: this test binary, started
// again with childEnv naming what it does and argEnv the file.
const (
	childEnv = "SQLITESTORE_TEST_CHILD"
	argEnv   = "SQLITESTORE_TEST_FILE"
)

var children = map[string]func(file string) error{
	"hold":  hold,
	"count": count,
	"close": closeSessions,
}

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childEnv)]; ok {
		if err := child(os.Getenv(argEnv)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startChild starts a child and waits for the first line that it prints.
func startChild(t *testing.T, what, file string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what, argEnv+"="+file)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "failed") {
		t.Fatalf("child %s: %q, %v", what, line, err)
	}
	return cmd
}

// kill ends a child as kill -9 does, stopped or not.
func kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// stall has another process take the write lock, and stops it.
func stall(t *testing.T, file string) (resume func()) {
	cmd := startChild(t, "hold", file)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() { kill(cmd) }
}

// hold keeps the write lock, with a row that is not committed, until killed.
func hold(file string) error {
	db, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO sessionshare (k, v, expires_at) VALUES ('uncommitted', x'31', 9e15)`); err != nil {
		return err
	}
	fmt.Println("held")
	select {}
}

// steps is how often each process of TestProcessesCount counts up.
const steps = 50

// count counts a number up by CompareAndSwap, as a replica does that merges.
func count(file string) error {
	s, closeAll, err := open(file)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Println("open")
	ctx := context.Background()
	for done := 0; done < steps; {
		old, found, err := s.Get(ctx, "counter")
		if err != nil {
			return err
		}
		n := uint64(1)
		if found {
			n = binary.BigEndian.Uint64(old) + 1
		}
		swapped, err := s.CompareAndSwap(ctx, "counter", old, binary.BigEndian.AppendUint64(nil, n), time.Hour)
		if err != nil {
			return err
		}
		if swapped {
			done++
		}
	}
	return nil
}

// sessions is how many records TestKilledWhileClosing lays out.
const sessions = 2000

func closeSessions(file string) error {
	s, closeAll, err := open(file)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Println("open")
	for i := range sessions {
		n := strconv.Itoa(i)
		if err := s.PutDelete(context.Background(), "closed."+n, []byte("1"), time.Hour, "session."+n); err != nil {
			return err
		}
	}
	return nil
}

// open is what a process does: a pool of one connection for writes, and one of
// a few for reads.
func open(file string) (s *sqlitestore.Store, closeAll func(), err error) {
	writes, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		return nil, nil, err
	}
	writes.SetMaxOpenConns(1)
	reads, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		return nil, nil, err
	}
	reads.SetMaxOpenConns(4)
	s, err = sqlitestore.New(writes, &sqlitestore.Options{Reads: reads})
	return s, func() { reads.Close(); writes.Close() }, err
}

func openMigrated(t *testing.T, file string) *sqlitestore.Store {
	t.Helper()
	s, closeAll, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}
