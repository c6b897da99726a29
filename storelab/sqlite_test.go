//go:build unix

package storelab

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare/stores/sqlitestore"
)

// SQLite has no server: what can happen to it comes from the other processes on
// the file.
var sqliteFaults = []struct {
	name  string
	cause func(t *testing.T, file string)
}{
	{"a process stopped for 5 s with the write lock, then killed", func(t *testing.T, file string) {
		p := startProcess(t, childOf("hold", file))
		p.Stop()
		time.Sleep(5 * time.Second)
		p.Kill()
	}},
	{"processes that write killed for 3 s", func(t *testing.T, file string) {
		for began := time.Now(); time.Since(began) < 3*time.Second; {
			p := startProcess(t, childOf("scribble", file))
			time.Sleep(100 * time.Millisecond)
			p.Kill()
		}
	}},
}

// holdSQLite keeps the write lock, with a row that is not committed.
func holdSQLite(file string) error {
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
	fmt.Println("ready")
	select {}
}

// scribble writes as fast as it can.
func scribble(file string) error {
	db, err := sql.Open("sqlite", sqlitestore.DSN(file))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	s, err := sqlitestore.New(db, nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for n := 0; ; n++ {
		if err := s.Put(context.Background(), fmt.Sprint("lab.other.", n%100), []byte(rand.Text()), time.Minute); err != nil {
			return err
		}
	}
}
