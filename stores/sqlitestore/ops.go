package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	errTTL   = errors.New("sqlitestore: ttl must be positive")
	errEmpty = errors.New("sqlitestore: value must not be empty")
)

// queries are the statements on one table. Each reads SQLite's clock after it
// has got its lock, so a wait for another process never revives a key.
type queries struct {
	get, put, del, touch, swap, create string
}

// now is the host's clock in ms. It is cut to a whole ms, so deadline adds one:
// a key never expires early.
const (
	now      = `CAST(round(unixepoch('subsec') * 1000) AS INTEGER)`
	deadline = now + ` + ?`
)

func newQueries(table string) queries {
	const set = ` SET v = excluded.v, expires_at = excluded.expires_at`
	insert := `INSERT INTO ` + table + ` (k, v, expires_at) VALUES (?, ?, ` + deadline + `) ON CONFLICT (k) DO UPDATE` + set
	return queries{
		get:    `SELECT k, v FROM ` + table + ` WHERE expires_at > ` + now + ` AND k IN (?`,
		put:    insert,
		create: insert + ` WHERE ` + table + `.expires_at <= ` + now,
		del:    `DELETE FROM ` + table + ` WHERE k = ?`,
		touch: `UPDATE ` + table + ` SET expires_at = max(expires_at, ` + deadline + `)
			WHERE k = ? AND expires_at > ` + now,
		swap: `UPDATE ` + table + ` SET v = ?, expires_at = ` + deadline + `
			WHERE k = ? AND v = ? AND expires_at > ` + now,
	}
}

// ms is ttl in whole ms, rounded up, and one more: see deadline.
func ms(ttl time.Duration) int64 {
	return int64((ttl-1)/time.Millisecond) + 2
}

// begin gives a context without a deadline one.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// failed names what failed. Once ctx has ended, the error says so, whatever
// SQLite made of it.
func failed(ctx context.Context, op string, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("sqlitestore: %s: %w: %w", op, ended, err)
	}
	return fmt.Errorf("sqlitestore: %s: %w", op, err)
}

// await runs f, and leaves it behind when ctx ends: SQLite obeys the context
// while it waits for a lock, but not while a disk hangs in a write. f must touch
// nothing of the caller's afterwards.
func await[T any](ctx context.Context, f func() (T, error)) (value T, err error) {
	if err := ctx.Err(); err != nil {
		return value, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// insist runs f until it does not find the file locked, or ctx ends: SQLite
// gives up after busy_timeout, and a caller has its own idea of how long to wait.
// Nothing that f did is left when the file was locked.
func insist[T any](ctx context.Context, f func() (T, error)) (T, error) {
	return await(ctx, func() (T, error) {
		for {
			value, err := f()
			var coded *sqlite.Error
			if err == nil || ctx.Err() != nil || !errors.As(err, &coded) || coded.Code()&0xff != sqlite3.SQLITE_BUSY {
				return value, err
			}
			// SQLite has waited already, unless waiting would have been of no use.
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// Get implements [sessionshare.SharedStore].
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	values, err := s.GetMany(ctx, []string{key})
	if err != nil {
		return nil, false, err
	}
	return values[0], values[0] != nil, nil
}

// GetMany implements [sessionshare.BatchGetter]. It is one statement, so all
// values are of one moment.
func (s *Store) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, cancel := s.begin(ctx)
	defer cancel()
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	found, err := insist(ctx, func() (map[string][]byte, error) {
		found := make(map[string][]byte, len(args))
		err := s.read(ctx, s.q.get+strings.Repeat(", ?", len(args)-1)+")", args, func(rows *sql.Rows) error {
			var key string
			var value []byte
			err := rows.Scan(&key, &value)
			found[key] = value
			return err
		})
		return found, err
	})
	if err != nil {
		return nil, failed(ctx, "get", err)
	}
	values := make([][]byte, len(keys))
	for i, key := range keys {
		values[i] = bytes.Clone(found[key]) // a key may be named twice
	}
	return values, nil
}

// read runs one reading statement and calls row for each row.
func (s *Store) read(ctx context.Context, query string, args []any, row func(*sql.Rows) error) error {
	rows, err := s.reads.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// exec runs one writing statement and reports whether it changed a row.
func (s *Store) exec(ctx context.Context, op, query string, args ...any) (changed bool, err error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	changed, err = insist(ctx, func() (bool, error) {
		result, err := s.writes.ExecContext(ctx, query, args...)
		if err != nil {
			return false, err
		}
		n, err := result.RowsAffected()
		return n > 0, err
	})
	if err != nil {
		return false, failed(ctx, op, err)
	}
	return changed, nil
}

func checkPut(value []byte, ttl time.Duration) error {
	switch {
	case ttl <= 0:
		return errTTL
	case len(value) == 0:
		return errEmpty
	}
	return nil
}

// Put implements [sessionshare.SharedStore].
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if err := checkPut(value, ttl); err != nil {
		return err
	}
	_, err := s.exec(ctx, "put", s.q.put, key, bytes.Clone(value), ms(ttl))
	return err
}

// Delete implements [sessionshare.SharedStore].
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.exec(ctx, "delete", s.q.del, key)
	return err
}

// Touch implements [sessionshare.Toucher]. It never shortens a life.
func (s *Store) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		return false, errTTL
	}
	return s.exec(ctx, "touch", s.q.touch, ms(ttl), key)
}

// CompareAndSwap implements [sessionshare.CompareAndSwapper]. A key that has
// expired is missing, swept or not.
func (s *Store) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if err := checkPut(new, ttl); err != nil {
		return false, err
	}
	old, new = bytes.Clone(old), bytes.Clone(new)
	if old == nil {
		return s.exec(ctx, "compare and swap", s.q.create, key, new, ms(ttl))
	}
	return s.exec(ctx, "compare and swap", s.q.swap, new, ms(ttl), key, old)
}

// PutDelete implements [sessionshare.PutDeleter]. It is one transaction.
func (s *Store) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	if err := checkPut(value, ttl); err != nil {
		return err
	}
	ctx, cancel := s.begin(ctx)
	defer cancel()
	value = bytes.Clone(value)
	_, err := insist(ctx, func() (struct{}, error) {
		return struct{}{}, s.putDelete(ctx, put, value, ms(ttl), del)
	})
	if err != nil {
		return failed(ctx, "put and delete", err)
	}
	return nil
}

func (s *Store) putDelete(ctx context.Context, put string, value []byte, ttl int64, del string) error {
	tx, err := s.writes.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, s.q.put, put, value, ttl); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, s.q.del, del); err != nil {
		return err
	}
	return tx.Commit()
}
