package sqlitestore_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/sqlitestore"
	"github.com/sessionshare/sessionshare/storetest"
)

const precision = time.Second

func TestConformance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		return openMigrated(t, file)
	}, storetest.Options{
		// Lives must outlast some calls, also with the race detector on a busy
		// machine. Expiry to the ms is what TestMS is for.
		Precision: precision,
		Stall:     func() func() { return stall(t, file) },
	})
}

// One pool for everything must be right too, only slower.
func TestConformanceOnePool(t *testing.T) {
	if testing.Short() {
		t.Skip("the same suite with other pools")
	}
	file := filepath.Join(t.TempDir(), "sessions.db")
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		db, err := sql.Open("sqlite", sqlitestore.DSN(file))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		s, err := sqlitestore.New(db, &sqlitestore.Options{Table: "sessions_2"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Precision: precision})
}

// Rule: operations on one key are linearizable across all processes, so no
// step of four processes that count at once is lost.
func TestProcessesCount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	s := openMigrated(t, file)
	var cmds []*exec.Cmd
	for range 4 {
		cmds = append(cmds, startChild(t, "count", file))
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error("a counting process:", err)
		}
	}
	v, _, err := s.Get(t.Context(), "counter")
	if err != nil {
		t.Fatal(err)
	}
	if n := binary.BigEndian.Uint64(v); n != 4*steps {
		t.Errorf("4 processes counted to %d, want %d", n, 4*steps)
	}
}

// Rule: PutDelete is in that order also when it is cut in the middle. A process
// that closes sessions is killed again and again at some moment.
func TestKilledWhileClosing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	s := openMigrated(t, file)
	for i := range sessions {
		if err := s.Put(t.Context(), "session."+strconv.Itoa(i), []byte("record"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 5 {
		cmd := startChild(t, "close", file)
		time.Sleep(time.Duration(5+10*round) * time.Millisecond)
		kill(cmd)
	}
	closed := 0
	for i := range sessions {
		n := strconv.Itoa(i)
		got, err := s.GetMany(t.Context(), []string{"session." + n, "closed." + n})
		if err != nil {
			t.Fatal(err)
		}
		if got[0] == nil && got[1] == nil {
			t.Fatalf("session %d: the record is gone and there is no mark", i)
		}
		if got[1] != nil {
			closed++
		}
	}
	t.Logf("%d of %d sessions were closed before the kills", closed, sessions)
	checkIntegrity(t, file)
}

// Rule: a process that died with the write lock holds nobody up, and what it
// had not committed is not there.
func TestKilledHolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	s := openMigrated(t, file)
	kill(startChild(t, "hold", file))
	began := time.Now()
	if err := s.Put(t.Context(), "k", []byte("v"), time.Hour); err != nil {
		t.Fatal(err)
	}
	t.Logf("the first write took %v", time.Since(began))
	if _, found, err := s.Get(t.Context(), "uncommitted"); found || err != nil {
		t.Errorf("an uncommitted row: found %t, %v", found, err)
	}
	checkIntegrity(t, file)
}

// Rule: a call waits for other processes as long as its context, or the default
// deadline, allows: not less, as busy_timeout would have it, and not more.
func TestWaitsAsLongAsItMay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	openMigrated(t, file)
	for _, busy := range []string{"10", "60000"} {
		db, err := sql.Open("sqlite", strings.Replace(sqlitestore.DSN(file), "_busy_timeout=1000", "_busy_timeout="+busy, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s, err := sqlitestore.New(db, &sqlitestore.Options{Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		resume := stall(t, file)
		began := time.Now()
		err = s.Put(context.Background(), "k", []byte("v"), time.Hour)
		took := time.Since(began)
		resume()
		if !errors.Is(err, context.DeadlineExceeded) || took < 300*time.Millisecond || took > time.Second {
			t.Errorf("busy_timeout %s ms: Put without a deadline returned %v after %v", busy, err, took)
		}
	}
}

// Rule: Sweep removes what has expired, from the file too.
func TestSweepFrees(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	s := openMigrated(t, file)
	for i := range 500 {
		ttl := time.Millisecond
		if i%10 == 0 {
			ttl = time.Hour
		}
		if err := s.Put(t.Context(), strconv.Itoa(i), []byte("v"), ttl); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(5 * time.Millisecond)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, file, `SELECT count(*) FROM sessionshare`); n != 50 {
		t.Errorf("%d rows are left, want 50", n)
	}
}

// Rule: an outage is an error, never a miss.
func TestMissingTable(t *testing.T) {
	s, closeAll, err := open(filepath.Join(t.TempDir(), "sessions.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	if _, _, err := s.Get(t.Context(), "k"); err == nil || !strings.HasPrefix(err.Error(), "sqlitestore: get: ") {
		t.Errorf("Get without a table returned %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sessions.db")
	good := sqlitestore.DSN(file)
	for _, c := range []struct {
		name, dsn string
		opts      *sqlitestore.Options
		want      string
	}{
		{"journal", "file:" + filepath.Join(dir, "delete.db") + "?_busy_timeout=1000", nil, "add _journal_mode=WAL"},
		{"busy", "file:" + file + "?_journal_mode=WAL", nil, "add _busy_timeout=1000"},
		{"synchronous off", "file:" + file + "?_journal_mode=WAL&_busy_timeout=9&_synchronous=OFF", nil, "add _synchronous=FULL"},
		{"memory", ":memory:", nil, "use sessionshare.NewMemoryStore"},
		{"table", good, &sqlitestore.Options{Table: "a b"}, "Options.Table"},
		{"timeout", good, &sqlitestore.Options{Timeout: -1}, "Options.Timeout"},
		{"good", good, nil, ""},
	} {
		db, err := sql.Open("sqlite", c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = sqlitestore.New(db, c.opts)
		db.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: New returned %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := sqlitestore.New(nil, nil); err == nil {
		t.Error("New(nil, nil) returned no error")
	}
}

// A PRAGMA sent with Exec holds on one connection of the pool: New looks at two.
func TestNewRefusesHalfSet(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "sessions.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 1000`); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitestore.New(db, nil); err == nil || !strings.Contains(err.Error(), "differs from the first") {
		t.Errorf("New returned %v", err)
	}
}

func query[T any](t *testing.T, file, text string) (result T) {
	t.Helper()
	db, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(text).Scan(&result); err != nil {
		t.Fatal(err)
	}
	return result
}

func checkIntegrity(t *testing.T, file string) {
	t.Helper()
	if got := query[string](t, file, `PRAGMA integrity_check`); got != "ok" {
		t.Error("integrity_check:", got)
	}
}

// Any file name will do.
func TestDSN(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, file := range []string{"sessions.db", "a b.db", "what?.db", "50%25#1.db", filepath.Join(t.TempDir(), "a ?b.db")} {
		s, closeAll, err := open(file)
		if err != nil {
			t.Errorf("%q: %v", file, err)
			continue
		}
		if err := s.Migrate(t.Context()); err != nil {
			t.Errorf("%q: %v", file, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("%q: %v", file, err)
		}
		closeAll()
	}
}
