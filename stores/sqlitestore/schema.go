package sqlitestore

import (
	"context"
	"strings"
)

// sweepBatch is how many keys one transaction of Sweep removes: few enough that
// other writers wait a few ms.
const sweepBatch = 200

// Migrate creates the table if it is not there. It may run at every start, in
// several processes at once.
//
// The value is the last column: a long one lies on pages of its own, and Sweep
// finds expires_at without reading them. There is no index on expires_at,
// because every Touch would have to move its entry.
func (s *Store) Migrate(ctx context.Context) error {
	_, err := s.exec(ctx, "migrate", `CREATE TABLE IF NOT EXISTS `+s.table+` (
		k TEXT PRIMARY KEY NOT NULL,
		expires_at INTEGER NOT NULL,
		v BLOB NOT NULL
	) WITHOUT ROWID`)
	return err
}

// Sweep implements [sessionshare.Sweeper]. It goes through the keys once, and
// looks at the expiry again when it deletes: a key that was put meanwhile stays.
func (s *Store) Sweep(ctx context.Context) error {
	for last := ""; ; {
		keys, err := s.expiredAfter(ctx, last)
		if err != nil || len(keys) == 0 {
			return err
		}
		last = keys[len(keys)-1].(string)
		_, err = s.exec(ctx, "sweep", `DELETE FROM `+s.table+` WHERE expires_at <= `+now+
			` AND k IN (?`+strings.Repeat(", ?", len(keys)-1)+`)`, keys...)
		if err != nil {
			return err
		}
	}
}

// expiredAfter returns up to sweepBatch expired keys greater than last, in
// order. It reads only, so nobody waits for it.
func (s *Store) expiredAfter(ctx context.Context, last string) (keys []any, err error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	rows, err := s.reads.QueryContext(ctx, `SELECT k FROM `+s.table+` WHERE k > ? AND expires_at <= `+now+
		` ORDER BY k LIMIT ?`, last, sweepBatch)
	if err != nil {
		return nil, failed(ctx, "sweep", err)
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, failed(ctx, "sweep", err)
		}
		keys = append(keys, key)
	}
	if err := rows.Err(); err != nil {
		return nil, failed(ctx, "sweep", err)
	}
	return keys, nil
}
