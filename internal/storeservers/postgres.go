//go:build unix

package storeservers

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// InstallPostgres is the line that gets PostgreSQL on Debian.
const InstallPostgres = "apt-get install -y --no-install-recommends postgresql"

// Postgres makes a database cluster and starts a server for it, with the
// server's own settings save those in settings ("name=value"). The superuser
// is postgres and needs no password.
func Postgres(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	bin := postgresBin()
	if bin == "" {
		Missing(tb, "PostgreSQL", InstallPostgres)
	}
	// Not tb.TempDir: PostgreSQL's user has to get there.
	dir, err := os.MkdirTemp("", "storeservers-postgres-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	owner := unprivileged(tb)
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = child(owner), dir
	if out, err := initdb.CombinedOutput(); err != nil {
		tb.Fatalf("storeservers: initdb: %v\n%s", err, out)
	}
	addr, port := freeAddr(tb)
	s := &Server{Addr: addr, URL: "postgres://postgres@" + addr + "/postgres?sslmode=disable", Dir: dir}
	pidFile := filepath.Join(data, "postmaster.pid")
	s.command = func() *exec.Cmd {
		// A killed server leaves these, and its pid may be taken by another process.
		os.Remove(pidFile)
		os.Remove(filepath.Join(dir, ".s.PGSQL."+port+".lock"))
		args := []string{"-D", data, "-p", port, "-h", "127.0.0.1", "-k", dir}
		for _, setting := range settings {
			args = append(args, "-c", setting)
		}
		cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
		cmd.SysProcAttr = child(owner)
		return cmd
	}
	s.ready = func() bool {
		status, _ := os.ReadFile(pidFile)
		lines := bytes.Split(status, []byte("\n"))
		return len(lines) > 7 && string(bytes.TrimSpace(lines[7])) == "ready"
	}
	return start(tb, s)
}

// postgresBin returns the folder of PostgreSQL's programs, the newest if there
// are several, or "".
func postgresBin() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	version := func(path string) int {
		v, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return v
	}
	slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			found = append(found, path)
		}
	}
	for _, path := range found {
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "initdb")); err == nil {
			return filepath.Dir(path)
		}
	}
	return ""
}

// unprivileged returns whom PostgreSQL runs as when the test runs as root,
// which it refuses; nil otherwise.
func unprivileged(tb testing.TB) *syscall.Credential {
	tb.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			tb.Fatal(err)
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		tb.Fatalf("storeservers: user %s has the IDs %q and %q", u.Username, u.Uid, u.Gid)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
