package natsstore_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sessionshare/sessionshare"
	"github.com/sessionshare/sessionshare/stores/natsstore"
	"github.com/sessionshare/sessionshare/storetest"
)

var threeReplicas = &natsstore.Options{Bucket: "three", Replicas: 3}

// Rule: what a write that returned nil stored, every read that begins
// afterwards sees, also when the two are connected to different servers of a
// cluster.
func TestClusterConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers take some seconds")
	}
	all, n := startCluster(t), 0
	storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
		n++
		return openStore(t, all[n%len(all)].url, threeReplicas)
	}, storetest.Options{Precision: precision})
}

// leader returns which of the servers leads the bucket's stream.
func leader(t *testing.T, all []*process, url string) int {
	t.Helper()
	js, err := jetstream.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_three")
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if stream.CachedInfo().Cluster.Leader == "n"+strconv.Itoa(i) {
			return i
		}
	}
	t.Fatal("no leader")
	return 0
}

// Rule: no acknowledged close mark is lost when the server dies that leads the
// bucket, and the store goes on.
func TestClusterLosesLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers take some seconds")
	}
	all := startCluster(t)
	openStore(t, all[0].url, threeReplicas)
	first := leader(t, all, all[0].url)
	s := openStore(t, all[(first+1)%3].url, threeReplicas)

	var acked, stop atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := int64(0); stop.Load() == 0; {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			if s.Put(ctx, "closed."+strconv.FormatInt(i, 10), []byte("1"), time.Hour) == nil {
				i++
				acked.Store(i)
			}
			cancel()
		}
	}()
	for acked.Load() < 200 {
		time.Sleep(time.Millisecond)
	}
	before, began := acked.Load(), time.Now()
	all[first].kill()
	for acked.Load() < before+100 && time.Since(began) < 30*time.Second {
		time.Sleep(time.Millisecond)
	}
	t.Logf("100 further writes %v after kill -9 of the leader", time.Since(began))
	stop.Store(1)
	<-done
	for i := range acked.Load() {
		// Fails the test if the mark is missing; errors are tried again.
		untilWorks(t, s, "closed."+strconv.FormatInt(i, 10))
	}
}
