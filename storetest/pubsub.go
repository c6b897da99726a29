package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sessionshare/sessionshare"
)

// pubsubCases: the ability PubSub. Hints may be lost, late or repeated, so the
// cases publish until something arrives, and judge only what arrived.
var pubsubCases = []testCase{{
	name:     "publish-delivers",
	sentence: "Publish sends msg to all who are subscribed to channel, on all replicas, this one included.",
	run: func(e *env) {
		a, b := need[sessionshare.PubSub](e, e.a), need[sessionshare.PubSub](e, e.b)
		here, there := e.subscribe(a, "c"), e.subscribe(b, "c")
		defer here.stop()
		defer there.stop()
		e.until(a, "c", "from a", here, there)
		e.until(b, "c", "from b", here, there)
	},
}, {
	name:     "publish-nobody",
	sentence: "Nobody subscribed is no error.",
	run: func(e *env) {
		e.must("Publish", need[sessionshare.PubSub](e, e.a).Publish(e.ctx(), e.key("nobody"), []byte("msg")))
	},
}, {
	name:     "publish-bytes",
	sentence: "msg is 1 byte to 4 KiB, any bytes.",
	run: func(e *env) {
		p := need[sessionshare.PubSub](e, e.a)
		s := e.subscribe(need[sessionshare.PubSub](e, e.b), "c")
		defer s.stop()
		for _, value := range awkwardValues() {
			e.until(p, "c", value, s)
		}
		e.until(p, "c", "x", s)
		e.until(p, "c", pattern(4<<10, 12), s)
	},
}, {
	name:     "publish-order",
	sentence: "deliver is called in the order in which one publisher published.",
	run: func(e *env) {
		p := need[sessionshare.PubSub](e, e.a)
		s := e.subscribe(need[sessionshare.PubSub](e, e.b), "c", "d")
		defer s.stop()
		e.until(p, "c", "ready", s)
		e.until(p, "d", "ready", s)
		for i := range 200 {
			channel := "c"
			if i%3 == 0 {
				channel = "d"
			}
			e.must("Publish", p.Publish(e.ctx(), e.key(channel), []byte(strconv.Itoa(i))))
		}
		last := -1
		for _, h := range e.until(p, "c", "end", s)[0] {
			if i, err := strconv.Atoi(h.msg); err == nil {
				if i < last {
					e.failf("message %d was delivered after message %d", i, last)
				}
				last = i
			}
		}
		if last < 0 {
			e.failf("none of 200 messages arrived")
		}
	},
}, {
	name:     "subscribe-channels",
	sentence: "Subscribe calls deliver for each message on one of channels (1 to 16).",
	run:      subscribeChannels,
}, {
	name:     "subscribe-keeps",
	sentence: "Values are copied at the border: deliver may keep msg.",
	run: func(e *env) {
		p := need[sessionshare.PubSub](e, e.a)
		s := e.subscribe(need[sessionshare.PubSub](e, e.b), "c")
		defer s.stop()
		e.until(p, "c", "ready", s)
		msg := []byte("hint 00")
		for i := range 20 {
			copy(msg, fmt.Sprintf("hint %02d", i))
			e.must("Publish", p.Publish(e.ctx(), e.key("c"), msg))
		}
		time.Sleep(10 * time.Millisecond) // a hint may be late
		e.until(p, "c", "end", s)
		for i, h := range s.all {
			if string(s.kept[i]) != h.msg {
				e.failf("a message that deliver kept changed later, from %s to %s", brief(h.msg), brief(string(s.kept[i])))
			}
		}
		// Losing some or repeating some is allowed; nothing but the last is not.
		received, distinct := 0, map[string]bool{}
		for _, h := range s.all {
			if strings.HasPrefix(h.msg, "hint") {
				received++
				distinct[h.msg] = true
			}
		}
		if len(distinct)*2 < received {
			e.failf("messages changed when their publisher changed its slice: %d arrived, %d of them different", received, len(distinct))
		}
	},
}, {
	name:     "subscribe-one-goroutine",
	sentence: "Subscribe calls deliver from one goroutine.",
	run:      subscribeOneGoroutine,
}, {
	name:     "subscribe-no-gap",
	sentence: "Subscribe does not hide a gap: when messages may have been missed it returns.",
	run:      subscribeNoGap,
}, {
	name:     "subscribe-ends",
	sentence: "Subscribe calls deliver until ctx is done; then it returns an error that says so.",
	run: func(e *env) {
		p := need[sessionshare.PubSub](e, e.a)
		s := e.subscribe(p, "c")
		e.until(p, "c", "ready", s)
		began := time.Now()
		if err := s.stop(); !errors.Is(err, context.Canceled) {
			e.failf("Subscribe returned %v, want an error that is context.Canceled", err)
		}
		if took := time.Since(began); took > time.Second {
			e.failf("Subscribe returned %v after its context was done", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if err := p.Subscribe(ctx, []string{e.key("c")}, func(string, []byte) {}); !errors.Is(err, context.DeadlineExceeded) {
			e.failf("Subscribe returned %v, want an error that is context.DeadlineExceeded", err)
		}
	},
}}

func subscribeChannels(e *env) {
	p := need[sessionshare.PubSub](e, e.a)
	var channels []string
	for i := range 16 {
		channels = append(channels, "channel-"+strconv.Itoa(i)+".x_y")
	}
	channels[15] = strings.Repeat("c", sessionshare.MaxKeyBytes-len(e.prefix))
	s := e.subscribe(need[sessionshare.PubSub](e, e.b), channels...)
	defer s.stop()
	for _, c := range channels {
		e.until(p, c, "to "+c, s)
	}
	for _, c := range []string{"channel-0.x-y", "channel-0", "channel-0.x_y.z", "channel-", "other", channels[15][1:]} {
		e.must("Publish", p.Publish(e.ctx(), e.key(c), []byte("to "+c)))
	}
	e.until(p, channels[0], "end", s)
	for _, h := range s.all {
		if h.msg != "end" && h.msg != "to "+h.channel {
			e.failf("a message %s was delivered as one on channel %s", brief(h.msg), brief(h.channel))
		}
	}
	for _, h := range s.all {
		known := false
		for _, c := range channels {
			known = known || c == h.channel
		}
		if !known {
			e.failf("a message on a channel that was not subscribed was delivered: %s", brief(h.channel))
		}
	}
}

func subscribeOneGoroutine(e *env) {
	p := need[sessionshare.PubSub](e, e.a)
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	var inside, calls, beside atomic.Int32
	ended := make(chan error, 1)
	go func() {
		ended <- p.Subscribe(ctx, []string{e.key("c"), e.key("d")}, func(string, []byte) {
			if inside.Add(1) > 1 {
				beside.Add(1)
			}
			time.Sleep(time.Millisecond)
			inside.Add(-1)
			calls.Add(1)
		})
	}()
	for end := time.Now().Add(10 * time.Second); calls.Load() < 20 && time.Now().Before(end); {
		for _, c := range []string{"c", "d"} {
			e.must("Publish", p.Publish(e.ctx(), e.key(c), []byte("msg")))
		}
		time.Sleep(200 * time.Microsecond)
	}
	cancel()
	<-ended
	switch {
	case calls.Load() == 0:
		e.failf("no message arrived")
	case beside.Load() > 0:
		e.failf("deliver was called while it was running")
	}
}

// subscribeNoGap publishes far more than a slow subscriber takes. Then it must
// get all of them, or be told.
func subscribeNoGap(e *env) {
	p := need[sessionshare.PubSub](e, e.a)
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	const n = 1500
	up, release := make(chan struct{}), make(chan struct{})
	var last, end, gap atomic.Int64
	first := true
	ended := make(chan error, 1)
	go func() {
		ended <- need[sessionshare.PubSub](e, e.b).Subscribe(ctx, []string{e.key("c")}, func(_ string, msg []byte) {
			if first {
				first = false
				close(up)
				<-release
			}
			i, _ := strconv.ParseInt(string(msg), 10, 64)
			if i > n {
				end.Store(i)
				return
			}
			if i > last.Load()+1 {
				gap.Store(i)
			}
			last.Store(max(last.Load(), i))
		})
	}()
	publish := func(i int) {
		e.must("Publish", p.Publish(e.ctx(), e.key("c"), []byte(strconv.Itoa(i))))
	}
	defer func() { cancel(); <-ended }()
	if !every(10*time.Millisecond, func() bool { publish(0); return closed(up) }) {
		close(release)
		e.failf("no message arrived within 10 s")
	}
	for i := range n {
		publish(i + 1)
	}
	close(release)
	var broke error
	arrived := every(10*time.Millisecond, func() bool {
		select {
		case broke = <-ended:
			ended <- broke
			return true
		default:
		}
		publish(n + 1)
		return end.Load() > 0
	})
	switch i := gap.Load(); {
	case i > 0:
		e.failf("message %d of %d was delivered without the one before it", i, n)
	case broke == nil && last.Load() < n && end.Load() > 0:
		e.failf("messages after %d of %d are missing, and Subscribe goes on", last.Load(), n)
	case !arrived:
		e.failf("nothing arrives any more, and Subscribe goes on")
	}
}
