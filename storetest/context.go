package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sessionshare/sessionshare"
)

// contextCases: contexts, and the text of errors.
var contextCases = []testCase{{
	name:     "context-cancelled",
	sentence: "After ctx ends a call returns an error for which errors.Is(err, ctx.Err()) holds.",
	run: func(e *env) {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("the cause, which is not ctx.Err()"))
		e.endedContext(ctx)
	},
}, {
	name:     "context-expired",
	sentence: "After ctx ends a call returns an error for which errors.Is(err, ctx.Err()) holds.",
	run: func(e *env) {
		ctx, cancel := context.WithTimeout(context.Background(), -time.Second)
		defer cancel()
		e.endedContext(ctx)
	},
}, {
	name:     "errors-name-nothing",
	sentence: "Errors name no key and no value.",
	run: func(e *env) {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for _, c := range e.calls(e.a, e.key("secret-key"), "secret-value", -1) {
			for _, ctx := range []context.Context{e.ctx(), ended} {
				if err := c.do(ctx); err != nil && strings.Contains(err.Error(), "secret-") {
					e.failf("the error of %s names a key or a value: %v", c.name, err)
				}
			}
		}
	},
}, {
	name: "stalled",
	sentence: "A call returns soon after ctx ends (50 ms), whatever the store does, with an error for which " +
		"errors.Is(err, ctx.Err()) holds. A miss and an outage never look alike.",
	alone: true,
	run:   stalled,
}}

// A call is one use of one method.
type call struct {
	name string
	do   func(ctx context.Context) error
}

// calls returns one call of every method that s has, save those that only last.
func (e *env) calls(s sessionshare.SharedStore, key, value string, ttl time.Duration) []call {
	v := []byte(value)
	all := []call{
		{"Get", func(ctx context.Context) error {
			_, found, err := s.Get(ctx, key)
			return missed(!found, err)
		}},
		{"Put", func(ctx context.Context) error { return s.Put(ctx, key, v, ttl) }},
		{"Delete", func(ctx context.Context) error { return s.Delete(ctx, key+".deleted") }},
	}
	if t, ok := as[sessionshare.Toucher](s); ok {
		all = append(all, call{"Touch", func(ctx context.Context) error {
			found, err := t.Touch(ctx, key, ttl)
			return missed(!found, err)
		}})
	}
	if g, ok := as[sessionshare.BatchGetter](s); ok {
		all = append(all, call{"GetMany", func(ctx context.Context) error {
			values, err := g.GetMany(ctx, []string{key, key + ".other", key})
			return missed(len(values) != 3 || values[0] == nil || values[2] == nil, err)
		}})
	}
	if p, ok := as[sessionshare.PutDeleter](s); ok {
		all = append(all, call{"PutDelete", func(ctx context.Context) error {
			return p.PutDelete(ctx, key, v, ttl, key+".deleted")
		}})
	}
	if c, ok := as[sessionshare.CompareAndSwapper](s); ok {
		all = append(all, call{"CompareAndSwap", func(ctx context.Context) error {
			_, err := c.CompareAndSwap(ctx, key+".swapped", []byte(value), []byte(value), ttl)
			return err
		}})
	}
	if p, ok := as[sessionshare.PubSub](s); ok {
		all = append(all, call{"Publish", func(ctx context.Context) error { return p.Publish(ctx, key, v) }})
	}
	return all
}

var errMissed = errors.New("a key that is there was reported missing")

func missed(miss bool, err error) error {
	if err == nil && miss {
		return errMissed
	}
	return err
}

func (e *env) endedContext(ctx context.Context) {
	e.Helper()
	calls := e.calls(e.a, e.key("k"), "value", long)
	if p, ok := as[sessionshare.PubSub](e.a); ok {
		calls = append(calls, call{"Subscribe", func(ctx context.Context) error {
			return p.Subscribe(ctx, []string{e.key("k")}, func(string, []byte) {})
		}})
	}
	if s, ok := as[sessionshare.Sweeper](e.a); ok {
		calls = append(calls, call{"Sweep", s.Sweep})
	}
	for _, c := range calls {
		began := time.Now()
		if err := c.do(ctx); !errors.Is(err, ctx.Err()) {
			e.failf("%s returned %v, want an error that is %v", c.name, err, ctx.Err())
		}
		if took := time.Since(began); took > time.Second {
			e.failf("%s returned %v after its context had ended", c.name, took)
		}
	}
}

// stalled stops the backend under 16 callers, and under 1,000.
func stalled(e *env) {
	if e.opts.Stall == nil {
		e.Skipf("the options have no Stall")
	}
	key := e.key("k")
	e.put(e.a, key, "value", long)
	for _, callers := range []int{16, 1000} {
		resume := e.opts.Stall()
		late, failure := e.stalledCalls(key, callers)
		resume()
		if failure != "" {
			e.failf("%d callers, backend stalled: %s", callers, failure)
		}
		if late > 50*time.Millisecond {
			e.failf("%d callers, backend stalled: a call returned %v after its context had ended", callers, late)
		}
		e.recovers(key)
	}
}

// stalledCalls makes the calls and returns how much later the last one
// returned than a goroutine that waits for its context and does nothing else:
// on a busy machine that one is late too.
func (e *env) stalledCalls(key string, callers int) (late time.Duration, failure string) {
	calls := e.calls(e.a, key, "value", long)
	expiring, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	end, _ := expiring.Deadline()
	// A client that hangs up cancels, long before the deadline.
	cancelled, hangUp := context.WithTimeout(context.Background(), time.Minute)
	defer hangUp()
	defer time.AfterFunc(time.Until(end), hangUp).Stop()
	var idle, busy atomic.Int64
	var wrong atomic.Pointer[string]
	var wg sync.WaitGroup
	for i := range callers {
		ctx := expiring
		if i/len(calls)%2 == 1 {
			ctx = cancelled
		}
		wg.Go(func() {
			<-ctx.Done()
			latest(&idle, time.Since(end))
		})
		wg.Go(func() {
			c := calls[i%len(calls)]
			err := c.do(ctx)
			over := ctx.Err()
			latest(&busy, time.Since(end))
			if err == errMissed || err != nil && over != nil && !errors.Is(err, over) {
				text := c.name + " returned: " + err.Error()
				wrong.Store(&text)
			}
		})
	}
	wg.Wait()
	if text := wrong.Load(); text != nil {
		failure = *text
	}
	return time.Duration(busy.Load() - max(0, idle.Load())), failure
}

func latest(max *atomic.Int64, d time.Duration) {
	for {
		old := max.Load()
		if int64(d) <= old || max.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// recovers waits until the store works again.
func (e *env) recovers(key string) {
	e.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, found, err := e.a.Get(ctx, key)
		cancel()
		switch {
		case err == nil && found:
			return
		case err == nil:
			e.failf("the key is missing after the backend was resumed")
		case time.Now().After(end):
			e.failf("20 s after the backend was resumed: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
