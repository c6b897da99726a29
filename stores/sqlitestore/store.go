// Package sqlitestore keeps the sessions of a gateway in a SQLite file that
// several processes on one host share.
//
// It is for a gateway that runs as several processes on one machine. Replicas
// on several machines need a server: a SQLite file must not lie on a network
// file system.
package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"time"

	"github.com/sessionshare/sessionshare"
	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

// Defaults of [Options].
const (
	DefaultTable   = "sessionshare"
	DefaultTimeout = 2 * time.Second
)

// Options say how a [Store] works. The zero value, and nil, mean the defaults.
type Options struct {
	// Table is the name of the table, of lower-case letters, digits and
	// underscores. "" means [DefaultTable].
	Table string

	// Reads is a second pool on the same file for Get and GetMany, so that reads
	// do not queue behind a write that waits for another process. nil means the
	// pool given to New.
	Reads *sql.DB

	// Timeout bounds a call whose context has no deadline. Zero means
	// [DefaultTimeout].
	Timeout time.Duration
}

// A Store is a [sessionshare.SharedStore] in one table of a SQLite file. Its
// clock is the host's, which all processes on the file share.
type Store struct {
	writes, reads *sql.DB
	table         string
	timeout       time.Duration
	q             queries
}

var (
	_ sessionshare.SharedStore       = (*Store)(nil)
	_ sessionshare.Toucher           = (*Store)(nil)
	_ sessionshare.BatchGetter       = (*Store)(nil)
	_ sessionshare.PutDeleter        = (*Store)(nil)
	_ sessionshare.CompareAndSwapper = (*Store)(nil)
	_ sessionshare.Sweeper           = (*Store)(nil)
)

// DSN returns the data source name for a file: with it, sql.Open("sqlite", ...)
// gives every connection of a pool the settings that New asks for.
//
// synchronous is FULL, so that a close mark that was acknowledged survives a
// power cut. busy_timeout bounds what a context cannot: the opening of a
// connection.
func DSN(file string) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(file), RawQuery: "_busy_timeout=1000" +
		"&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate"}
	if !filepath.IsAbs(file) {
		u.Opaque, u.Path = (&url.URL{Path: u.Path}).EscapedPath(), ""
	}
	return u.String()
}

// New returns a store on db, which the caller owns and closes. db has at best
// one connection (SetMaxOpenConns(1)): SQLite has one writer at a time, and
// database/sql queues fairer than SQLite does.
//
// New reads the settings of the connections and refuses those with which the
// store could not keep its promises. The table must exist before the store is
// used: see [Store.Migrate].
func New(db *sql.DB, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	s := &Store{
		writes:  db,
		reads:   cmp.Or(o.Reads, db),
		table:   cmp.Or(o.Table, DefaultTable),
		timeout: cmp.Or(o.Timeout, DefaultTimeout),
	}
	switch {
	case db == nil:
		return nil, errors.New("sqlitestore: db is nil")
	case s.timeout < 0:
		return nil, errors.New("sqlitestore: Options.Timeout is negative")
	case !tableName.MatchString(s.table):
		return nil, errors.New("sqlitestore: Options.Table must be 1 to 63 of [a-z0-9_] and begin with a letter")
	}
	s.q = newQueries(s.table)
	if err := s.checkPool(s.writes); err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	if s.reads != s.writes {
		if err := s.checkPool(s.reads); err != nil {
			return nil, fmt.Errorf("sqlitestore: Options.Reads: %w", err)
		}
	}
	return s, nil
}

var tableName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// checkPool looks at two connections where the pool allows two: settings made
// with db.Exec hold on one connection only, and the second one shows it.
func (s *Store) checkPool(db *sql.DB) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	first, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer first.Close()
	if err := checkConn(ctx, first); err != nil {
		return err
	}
	if n := db.Stats(); n.MaxOpenConnections != 0 && n.OpenConnections >= n.MaxOpenConnections && n.Idle == 0 {
		return nil
	}
	second, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer second.Close()
	if err := checkConn(ctx, second); err != nil {
		return fmt.Errorf("a further connection of the pool differs from the first: %w", err)
	}
	return nil
}

func checkConn(ctx context.Context, c *sql.Conn) error {
	var file, journal, version string
	var busy, synchronous int
	if err := c.QueryRowContext(ctx, `SELECT sqlite_version(), unixepoch('subsec') IS NOT NULL, file
		FROM pragma_database_list WHERE name = 'main'`).Scan(&version, new(bool), &file); err != nil {
		return fmt.Errorf("SQLite 3.42 or newer is needed: %w", err)
	}
	if file == "" {
		return errors.New(`the database is in memory, where each connection has its own: name a file, or use sessionshare.NewMemoryStore`)
	}
	if err := c.QueryRowContext(ctx, `SELECT
		(SELECT journal_mode FROM pragma_journal_mode),
		(SELECT timeout FROM pragma_busy_timeout),
		(SELECT synchronous FROM pragma_synchronous)`).Scan(&journal, &busy, &synchronous); err != nil {
		return err
	}
	switch {
	case journal != "wal":
		return fmt.Errorf("journal_mode is %s, so readers block writers: add _journal_mode=WAL to the DSN, or use sqlitestore.DSN", journal)
	case busy <= 0:
		return errors.New("busy_timeout is 0, so a write fails when another process writes: add _busy_timeout=1000 to the DSN, or use sqlitestore.DSN")
	case synchronous < 1:
		return errors.New("synchronous is OFF, so a power cut can corrupt the file: add _synchronous=FULL to the DSN, or use sqlitestore.DSN")
	}
	return nil
}
