//go:build unix

package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// TestNoLateWrites: what a caller gave up on while another process held the write
// lock is not applied afterwards, neither before nor after a close of the session,
// and the close mark stands.
func TestNoLateWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sessions.db")
	gaveUp, closer := openMigrated(t, file), openMigrated(t, file)
	resume := stall(t, file)
	const records = 10
	for i := range records {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := gaveUp.Put(ctx, fmt.Sprint("session.", i), []byte("record"), time.Hour)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Put while the file is locked: %v", err)
		}
	}
	resume()
	for i := range records {
		if err := closer.PutDelete(t.Context(), fmt.Sprint("closed.", i), []byte("1"), time.Hour, fmt.Sprint("session.", i)); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i := range records {
			values, err := closer.GetMany(t.Context(), []string{fmt.Sprint("session.", i), fmt.Sprint("closed.", i)})
			if err != nil {
				t.Fatal(err)
			}
			if values[0] != nil {
				t.Fatalf("record %d was written after its caller had given up", i)
			}
			if values[1] == nil {
				t.Fatalf("close mark %d is gone", i)
			}
		}
	}
}
