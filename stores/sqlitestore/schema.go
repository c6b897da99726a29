package sqlitestore

import (
	"context"
	"database/sql"
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
// because every Touch would have to move its entry. WITHOUT ROWID would put every
// row of more than 1 KB on a page of its own: three times the file, no faster.
func (s *Store) Migrate(ctx context.Context) error {
	_, err := s.exec(ctx, "migrate", `CREATE TABLE IF NOT EXISTS `+s.table+` (
		k TEXT PRIMARY KEY NOT NULL,
		expires_at INTEGER NOT NULL,
		v BLOB NOT NULL
	)`)
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
	keys, err = insist(ctx, func() (keys []any, err error) {
		err = s.read(ctx, `SELECT k FROM `+s.table+` WHERE k > ? AND expires_at <= `+now+` ORDER BY k LIMIT ?`,
			[]any{last, sweepBatch}, func(rows *sql.Rows) error {
				var key string
				err := rows.Scan(&key)
				keys = append(keys, key)
				return err
			})
		return keys, err
	})
	if err != nil {
		return nil, failed(ctx, "sweep", err)
	}
	return keys, nil
}
