package storetest

import (
	"context"
	"strings"
	"time"

	"github.com/sessionshare/sessionshare"
)

type hint struct{ channel, msg string }

// subscription collects what one Subscribe delivers.
type subscription struct {
	hints  chan hint
	raw    chan []byte
	all    []hint   // what until has read
	kept   [][]byte // the slices of all, as deliver got them
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // valid once ended is closed
}

func (e *env) subscribe(p sessionshare.PubSub, channels ...string) *subscription {
	ctx, cancel := context.WithCancel(e.ctx())
	s := &subscription{hints: make(chan hint, 1000), raw: make(chan []byte, 1000), cancel: cancel, ended: make(chan struct{})}
	names := make([]string, len(channels))
	for i, c := range channels {
		names[i] = e.key(c)
	}
	go func() {
		defer close(s.ended)
		s.err = p.Subscribe(ctx, names, func(channel string, msg []byte) {
			select {
			case s.hints <- hint{strings.TrimPrefix(channel, e.prefix), string(msg)}:
				s.raw <- msg
			default:
			}
		})
	}()
	return s
}

// stop ends the subscription and returns what Subscribe returned.
func (s *subscription) stop() error {
	s.cancel()
	<-s.ended
	return s.err
}

// until publishes msg again and again until every subscription got it, and
// returns what else each got before. There is no other way to learn that a
// subscription is up.
func (e *env) until(p sessionshare.PubSub, channel, msg string, subs ...*subscription) [][]hint {
	e.Helper()
	before := make([][]hint, len(subs))
	end := time.Now().Add(10 * time.Second)
	for i, s := range subs {
		for got := false; !got; {
			e.must("Publish", p.Publish(e.ctx(), e.key(channel), []byte(msg)))
			again := time.After(20 * time.Millisecond)
			for waiting := true; waiting && !got; {
				select {
				case h := <-s.hints:
					s.all, s.kept = append(s.all, h), append(s.kept, <-s.raw)
					if got = h == (hint{channel, msg}); !got {
						before[i] = append(before[i], h)
					}
				case <-s.ended:
					e.failf("Subscribe returned before its context was done: %v", s.err)
				case <-again:
					waiting = false
				}
			}
			if !got && time.Now().After(end) {
				s.stop()
				e.failf("a message of %d bytes was published for 10 s and did not arrive (subscriber %d)", len(msg), i+1)
			}
		}
	}
	return before
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// every calls f until it reports true, for 10 s at most.
func every(pause time.Duration, f func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(pause) {
		if f() {
			return true
		}
	}
	return false
}
