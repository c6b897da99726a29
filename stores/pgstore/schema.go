package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// sweepBatch is how many rows one statement of Sweep deletes.
const sweepBatch = 1000

// schema is the table. Rows are changed all the time, by touches that leave
// their indexed column alone: with free room in each page such an update is
// cheap. An index on expires_at would make it dear, and Sweep does without.
const schema = `CREATE TABLE IF NOT EXISTS @table (
	k text COLLATE "C" PRIMARY KEY,
	v bytea NOT NULL,
	expires_at timestamptz NOT NULL
) WITH (fillfactor = 70)`

// Schema returns the statement with which Migrate makes the table, for those
// who make it themselves.
func (s *Store) Schema() string {
	return strings.ReplaceAll(schema, "@table", s.name.Sanitize())
}

// Migrate makes the table if it is not there. Several replicas may do so at
// once. If it is there, no permission to make one is needed.
func (s *Store) Migrate(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var there bool
		// Two CREATE TABLE IF NOT EXISTS at once may fail, so they take turns.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext($1))", "sessionshare: "+s.opts.Table); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", s.name.Sanitize()).Scan(&there); err != nil || there {
			return err
		}
		_, err := tx.Exec(ctx, s.Schema())
		return err
	})
	return fail(ctx, "Migrate", err)
}

// Sweep implements [sessionshare.Sweeper]. It deletes in batches, so that none
// holds many rows for long, and leaves out what another sweep holds.
func (s *Store) Sweep(ctx context.Context) error {
	for {
		n, err := s.exec(ctx, "Sweep", s.sql.sweep, sweepBatch)
		if err != nil || n < sweepBatch {
			return err
		}
		select { // others want the disk too
		case <-ctx.Done():
			return fail(ctx, "Sweep", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
