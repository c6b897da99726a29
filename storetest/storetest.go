// Package storetest checks a [sessionshare.SharedStore] against its contract,
// one case for each sentence of it. A case that fails prints its sentence.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) sessionshare.SharedStore {
//			return mystore.New(client)
//		}, storetest.Options{})
//	}
//
// Abilities that the store has not are skipped. Time is real: the suite takes
// a few seconds, and some twenty multiples of a coarse [Options.Precision] are
// waited for at once, not one after the other. Nothing in it depends on how
// fast the machine is: a read counts as early or late only if it was so from
// its beginning to its end.
//
// What the suite cannot see from outside is left to the adapter's own tests: a
// server that is killed or fails over, and that Sweep really frees space.
package storetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sessionshare/sessionshare"
)

// DefaultPrecision is [Options.Precision] if that is zero.
const DefaultPrecision = 100 * time.Millisecond

// Options say what is special about a store. The zero value fits one that
// expires keys to the millisecond.
type Options struct {
	// Precision is how late the store may expire a key: the unit to which it
	// rounds a ttl up, plus what it needs to notice. Zero means DefaultPrecision.
	// A store with whole seconds says 1200 ms.
	Precision time.Duration

	// Stall, if not nil, makes the backend hang, as SIGSTOP does, until resume is
	// called. With it the suite checks, last and alone, that calls of 16 and of
	// 1,000 callers end with their contexts. The stall must reach both stores.
	Stall func() (resume func())
}

// Run checks the stores that newStore returns. It calls newStore twice: the two
// are two replicas, so they share one backend, and as little else as possible.
// Every case has keys of its own; what the backend holds otherwise stays.
func Run(t *testing.T, newStore func(t *testing.T) sessionshare.SharedStore, opts Options) {
	t.Helper()
	a, b := newStore(t), newStore(t)
	waiting := map[string]func() *recorder{}
	for _, c := range cases() {
		if c.waits {
			waiting[c.name] = start(c, a, b, opts)
		}
	}
	for _, c := range cases() {
		if c.alone {
			for _, result := range waiting {
				result()
			}
		}
		t.Run(c.name, func(t *testing.T) {
			if result, ok := waiting[c.name]; ok {
				result().replay(t)
				return
			}
			c.runOn(t, a, b, opts)
		})
	}
}

// start runs a case in the background, beside the others, and returns a
// function that waits for its result. t.Parallel would not do: it runs no more
// tests at once than there are processors, and these cases only sleep.
func start(c testCase, a, b sessionshare.SharedStore, opts Options) func() *recorder {
	done := make(chan *recorder, 1)
	go func() { done <- record(c, a, b, opts) }()
	return sync.OnceValue(func() *recorder { return <-done })
}

// A testCase enforces one sentence of the contract.
type testCase struct {
	name     string
	sentence string
	run      func(*env)
	waits    bool // it mostly sleeps, so it runs beside the others
	alone    bool // it disturbs others, so it runs when they are done
}

func cases() []testCase {
	var all []testCase
	for _, part := range [][]testCase{
		bytesCases, lifeCases, raceCases, touchCases, batchCases, swapCases, pubsubCases, sweepCases, contextCases,
	} {
		all = append(all, part...)
	}
	return all
}

func (c testCase) runOn(t tb, a, b sessionshare.SharedStore, opts Options) {
	opts.Precision = cmp.Or(opts.Precision, DefaultPrecision)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	c.run(&env{tb: t, sentence: c.sentence, a: a, b: b, opts: opts, prefix: "t" + strings.ToLower(rand.Text()) + ".", context: ctx})
}

// env is what a case works with: two stores over one backend, keys that nobody
// else uses, and checks that fail with the sentence of the contract.
type env struct {
	tb
	sentence string
	a, b     sessionshare.SharedStore
	opts     Options
	prefix   string
	context  context.Context
}

func (e *env) failf(format string, args ...any) {
	e.Helper()
	e.Fatalf(format+"\nThe contract says: %s", append(args, e.sentence)...)
}

// must fails if a call that has to work did not.
func (e *env) must(what string, err error) {
	e.Helper()
	if err != nil {
		e.failf("%s: %v", what, err)
	}
}

func (e *env) key(name string) string { return e.prefix + name }

// ctx returns a context that outlives any case on a store that works.
func (e *env) ctx() context.Context { return e.context }

const long = time.Hour

// short is the shortest ttl at which early and late can be told apart.
func (e *env) short() time.Duration { return max(250*time.Millisecond, e.opts.Precision) }

// A span is what a write promises about its key: a read that ended before
// alive must find it, one that began after gone must not.
type span struct{ alive, gone time.Time }

// lasting runs a write with the given ttl and returns its span.
func (e *env) lasting(ttl time.Duration, write func()) span {
	before := time.Now()
	write()
	return span{before.Add(ttl), time.Now().Add(ttl + e.opts.Precision)}
}

func (e *env) put(s sessionshare.SharedStore, key, value string, ttl time.Duration) span {
	e.Helper()
	return e.lasting(ttl, func() { e.must("Put", s.Put(e.ctx(), key, []byte(value), ttl)) })
}

// putThen puts a key that lives for a short time and calls then, which reports
// whether it found the key alive. If it did not, on a machine so slow that the key may
// have expired before, all of that is done again.
func (e *env) putThen(key string, life time.Duration, then func() (found bool)) (s span, found bool) {
	e.Helper()
	for range 5 {
		s = e.put(e.a, key, "value", life)
		if found = then(); found || time.Now().Before(s.alive) {
			return s, found
		}
	}
	e.Skipf("the machine is too slow")
	return s, false
}

func sleepUntil(t time.Time) { time.Sleep(time.Until(t) + time.Millisecond) }

// get reads a key.
func (e *env) get(s sessionshare.SharedStore, key string) (string, bool) {
	e.Helper()
	value, found, err := s.Get(e.ctx(), key)
	e.must("Get", err)
	return string(value), found
}

// present checks on both replicas that key holds value.
func (e *env) present(when, key, value string) {
	e.Helper()
	for i, s := range []sessionshare.SharedStore{e.a, e.b} {
		got, found := e.get(s, key)
		if !found {
			e.failf("%s: the key is missing (replica %d)", when, i+1)
		}
		if got != value {
			e.failf("%s: the key holds %s, want %s (replica %d)", when, brief(got), brief(value), i+1)
		}
	}
}

// absent checks on both replicas that key is missing.
func (e *env) absent(when, key string) {
	e.Helper()
	for i, s := range []sessionshare.SharedStore{e.a, e.b} {
		if got, found := e.get(s, key); found {
			e.failf("%s: the key is there and holds %s (replica %d)", when, brief(got), i+1)
		}
	}
}

func brief(value string) string {
	if len(value) > 40 {
		return strings.ToValidUTF8(value[:40], "?") + "..."
	}
	return "\"" + strings.ToValidUTF8(value, "?") + "\""
}

// need returns an ability of s, or skips the case.
func need[T any](e *env, s sessionshare.SharedStore) T {
	e.Helper()
	ability, ok := as[T](s)
	if !ok {
		e.Skipf("the store is no %s", reflect.TypeFor[T]().Name())
	}
	return ability
}

// as is what the library does to find an optional ability: it looks through
// wrappers.
func as[T any](s sessionshare.SharedStore) (ability T, ok bool) {
	for s != nil {
		if a, ok := s.(T); ok {
			return a, true
		}
		u, ok := s.(interface {
			Unwrap() sessionshare.SharedStore
		})
		if !ok {
			break
		}
		s = u.Unwrap()
	}
	return ability, false
}

// together runs the functions at once and fails with the first error.
func (e *env) together(fs ...func() error) {
	e.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(fs))
	gate := make(chan struct{})
	for i, f := range fs {
		wg.Go(func() {
			<-gate
			errs[i] = f()
		})
	}
	close(gate)
	wg.Wait()
	for _, err := range errs {
		e.must("a call that ran beside others", err)
	}
}

// rounds repeats what only luck can catch: n times, but not for long.
func rounds(n int, round func(i int)) {
	end := time.Now().Add(400 * time.Millisecond)
	for i := range n {
		if i >= 3 && time.Now().After(end) {
			return
		}
		round(i)
	}
}

// pattern returns n letters in which no two blocks are alike.
func pattern(n int, seed byte) string {
	p := make([]byte, n)
	for i := range p {
		p[i] = 'a' + (byte(i%251)+byte(i>>8)+seed)%26
	}
	return string(p)
}
