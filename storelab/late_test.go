//go:build unix

package storelab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// TestLateWrite: a Put of a record that its replica gave up on is on its way
// while the session is closed elsewhere, and is applied after that. The mark
// wins: nobody serves the session.
//
// SQLite has no such writes: a statement whose context has ended is rolled back
// by the process that began it.
func TestLateWrite(t *testing.T) {
	for _, b := range networked {
		t.Run(b.name, func(t *testing.T) { lateWrite(t, b) })
	}
}

func lateWrite(t *testing.T, b backend) {
	const sessions = 10
	_, addr := b.start(t)
	slow := newWire(t, addr, 0)
	opts := sessionshare.Options{RecheckInterval: recheckInterval, StoreTimeout: 300 * time.Millisecond}
	var replicas []*replica
	for _, a := range []string{slow.addr, addr, addr} {
		opts.Store = b.open(t, a)
		replicas = append(replicas, newReplica(t, opts))
	}
	for range 4 {
		replicas[0].open(t) // so that it has connections to write to
	}

	// What the first replica writes from now on stays on the way.
	slow.hold()
	ids := make([]string, sessions)
	var opens sync.WaitGroup
	for i := range ids {
		opens.Go(func() {
			w := replicas[0].do(context.Background(), http.MethodPost, "", initBody)
			if ids[i] = w.Header().Get("Mcp-Session-Id"); w.Code != http.StatusOK {
				t.Errorf("initialize without a store was answered %d %s", w.Code, w.Body)
			}
		})
	}
	opens.Wait()
	for _, id := range ids {
		if err := replicas[1].CloseSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	slow.release()

	late := lateRecords(t, replicas[1].store, ids)
	t.Logf("%d of %d records were applied after the close", late, sessions)
	lateNotes = append(lateNotes, lateNote{b.name, sessions, late})
	end := time.Now().Add(closedBound)
	for {
		alive := 0
		for _, id := range ids {
			for i, r := range replicas {
				code := r.do(context.Background(), http.MethodPost, id, listTools()).Code
				switch {
				case code == http.StatusNotFound:
				case i == 0 && code == http.StatusOK:
					alive++ // until it has read the mark
				default:
					t.Fatalf("replica %d answered %d for a closed session with a late record", i, code)
				}
			}
		}
		if alive == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d sessions are served %v after their close", alive, closedBound)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lateRecords counts the records that appear within a second. They are looked
// for by their keys, since no replica would admit to them.
func lateRecords(t *testing.T, store sessionshare.SharedStore, ids []string) int {
	t.Helper()
	seen := map[string]bool{}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, id := range ids {
			digest := sha256.Sum256([]byte(id))
			_, found, err := store.Get(t.Context(), sessionshare.DefaultKeyPrefix+"session."+hex.EncodeToString(digest[:]))
			if err != nil {
				t.Fatal(err)
			}
			if found {
				seen[id] = true
			}
		}
	}
	return len(seen)
}

// A lateNote is what docs/STORES.md says about late writes on one store.
type lateNote struct {
	store       string
	tried, late int
}

var lateNotes []lateNote
