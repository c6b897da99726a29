//go:build unix

package storelab

import (
	"context"
	"flag"
	"net/http"
	"testing"
	"time"
)

var clocks = flag.Bool("clocks", false, "run TestClocks, which builds everything again with other clocks, and needs gcc")

// TestClocks: with the server's clock an hour off, and one replica's clock an hour
// off to each side, sessions in use go on, idle ones end when they should, and
// deleted ones stay deleted.
func TestClocks(t *testing.T) {
	if !*clocks {
		t.Skip("it builds everything again, which takes minutes; to run it: go test . -clocks")
	}
	programs := buildSkewed(t)
	for _, b := range networked {
		for _, skew := range []time.Duration{time.Hour, -time.Hour} {
			t.Run(b.name+" "+skew.String(), func(t *testing.T) {
				addr := programs.start(t, b, skew)
				underClocks(t, []*replica{
					newReplica(t, clockOptions(b.open(t, addr))),
					programs.replica(t, b, addr, time.Hour),
					programs.replica(t, b, addr, -time.Hour),
				})
				if !t.Failed() && *write {
					clockNotes = append(clockNotes, b.name+" "+skew.String())
				}
			})
		}
	}
}

func underClocks(t *testing.T, replicas []*replica) {
	var used, half, idle, deleted []string
	for _, r := range replicas {
		used, half, idle, deleted = append(used, r.open(t)), append(half, r.open(t)), append(idle, r.open(t)), append(deleted, r.open(t))
	}
	began := time.Now()
	expect := func(what string, i int, id string, want int) {
		t.Helper()
		if w := replicas[i%3].do(context.Background(), http.MethodPost, id, listTools()); w.Code != want {
			t.Errorf("%v after the start, replica %d answered %d for a session that is %s", time.Since(began).Round(time.Millisecond), i%3, w.Code, what)
		}
	}
	for i, id := range deleted {
		expect("about to be deleted", i+1, id, http.StatusOK)
		if w := replicas[i].do(context.Background(), http.MethodDelete, id, ""); w.Code != http.StatusNoContent {
			t.Errorf("a DELETE was answered %d", w.Code)
		}
	}
	for n := 0; time.Since(began) < clockIdle/2; n++ {
		for _, id := range used {
			expect("in use", n, id, http.StatusOK)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for i, id := range half {
		expect("idle for half of its time", i+1, id, http.StatusOK)
	}
	// A store may count in whole seconds.
	for n := 0; time.Since(began) < clockIdle+time.Second+grace; n++ {
		for _, id := range used {
			expect("in use", n, id, http.StatusOK)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for i := range replicas {
		for k := range replicas {
			expect("idle", i, idle[k], http.StatusNotFound)
			expect("deleted", i, deleted[k], http.StatusNotFound)
		}
	}
}

var clockNotes []string
