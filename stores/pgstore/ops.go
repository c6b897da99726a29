package pgstore

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// statements are the SQL of a store. All of them run alone, each in its own
// transaction, and none is given a time: a ttl in microseconds is added to the
// server's clock.
//
// What is written is judged by clock_timestamp(), which goes on while a
// statement waits for a row. now() stands still, so a Touch that waited for
// longer than a key lived would revive it. What is read is judged by
// statement_timestamp(), so that all keys of one GetMany are seen at one moment.
type statements struct {
	get, getMany, put, del, touch, putDelete, swap, create, sweep string
}

func statementsFor(table string) statements {
	const (
		life   = "clock_timestamp() + @ttl * interval '1 microsecond'"
		upsert = "INSERT INTO @table AS t (k, v, expires_at) VALUES ($1, $2, @life) " +
			"ON CONFLICT (k) DO UPDATE SET v = excluded.v, expires_at = @life"
	)
	r := strings.NewReplacer("@table", table, "@life", strings.ReplaceAll(life, "@ttl", "$3"), "@touch", strings.ReplaceAll(life, "@ttl", "$2"))
	return statements{
		get:     r.Replace("SELECT v FROM @table WHERE k = $1 AND expires_at > statement_timestamp()"),
		getMany: r.Replace("SELECT k, v FROM @table WHERE k = ANY($1) AND expires_at > statement_timestamp()"),
		put:     r.Replace(upsert),
		del:     r.Replace("DELETE FROM @table WHERE k = $1"),
		touch: r.Replace("UPDATE @table SET expires_at = greatest(expires_at, @touch) " +
			"WHERE k = $1 AND expires_at > clock_timestamp()"),
		// One statement: both are done, or neither.
		putDelete: r.Replace("WITH put AS (" + upsert + ") DELETE FROM @table WHERE k = $4"),
		swap: r.Replace("UPDATE @table SET v = $2, expires_at = @life " +
			"WHERE k = $1 AND v = $4 AND expires_at > clock_timestamp()"),
		create: r.Replace(upsert + " WHERE t.expires_at <= clock_timestamp()"),
		// FOR UPDATE looks at a row once more when it has its lock: without it, a
		// row that was put again meanwhile would be deleted.
		sweep: r.Replace("DELETE FROM @table WHERE k IN (SELECT k FROM @table WHERE expires_at <= clock_timestamp() " +
			"LIMIT $1 FOR UPDATE SKIP LOCKED)"),
	}
}

// Get implements [sessionshare.SharedStore].
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var value []byte
	err := s.pool.QueryRow(ctx, s.sql.get, key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	return value, err == nil, fail(ctx, "Get", err)
}

// GetMany implements [sessionshare.BatchGetter] with one statement, which sees
// the table as of one moment.
func (s *Store) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.sql.getMany, keys)
	if err != nil {
		return nil, fail(ctx, "GetMany", err)
	}
	found := make(map[string][]byte, len(keys))
	var key string
	var value []byte
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		found[key] = value
		return nil
	})
	if err != nil {
		return nil, fail(ctx, "GetMany", err)
	}
	values := make([][]byte, len(keys))
	for i, key := range keys {
		values[i] = bytes.Clone(found[key]) // a key may be asked for twice
	}
	return values, nil
}

// Put implements [sessionshare.SharedStore].
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	us, err := input(value, ttl)
	if err != nil {
		return fail(ctx, "Put", err)
	}
	_, err = s.exec(ctx, "Put", s.sql.put, key, value, us)
	return err
}

// Delete implements [sessionshare.SharedStore].
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.exec(ctx, "Delete", s.sql.del, key)
	return err
}

// Touch implements [sessionshare.Toucher]. It shortens no life.
func (s *Store) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	us, err := microseconds(ttl)
	if err != nil {
		return false, fail(ctx, "Touch", err)
	}
	n, err := s.exec(ctx, "Touch", s.sql.touch, key, us)
	return n == 1, err
}

// PutDelete implements [sessionshare.PutDeleter] with one statement.
func (s *Store) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	us, err := input(value, ttl)
	if err != nil {
		return fail(ctx, "PutDelete", err)
	}
	_, err = s.exec(ctx, "PutDelete", s.sql.putDelete, put, value, us, del)
	return err
}

// CompareAndSwap implements [sessionshare.CompareAndSwapper] with one statement.
func (s *Store) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	us, err := input(new, ttl)
	if err != nil {
		return false, fail(ctx, "CompareAndSwap", err)
	}
	var n int64
	if old == nil {
		n, err = s.exec(ctx, "CompareAndSwap", s.sql.create, key, new, us)
	} else {
		n, err = s.exec(ctx, "CompareAndSwap", s.sql.swap, key, new, us, old)
	}
	return n == 1, err
}
