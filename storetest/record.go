package storetest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/sessionshare/sessionshare"
)

// tb is what a case needs of a [testing.T].
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(func())
}

var (
	_ tb = (*testing.T)(nil)
	_ tb = (*recorder)(nil)
)

// recorder is a tb that keeps what happened to a case, to be told later or
// judged by a test of the suite.
type recorder struct {
	mu       sync.Mutex // guards all below
	message  string
	failed   bool
	skipped  bool
	cleanups []func()
}

// record runs a case and returns what happened.
func record(c testCase, a, b sessionshare.SharedStore, opts Options) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	// A goroutine of its own, since Fatalf and Skipf end it.
	go func() {
		defer close(done)
		defer r.cleanUp()
		c.runOn(r, a, b, opts)
	}()
	<-done
	return r
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.end(&r.failed, format, args)
}

func (r *recorder) Skipf(format string, args ...any) {
	r.end(&r.skipped, format, args)
}

func (r *recorder) end(outcome *bool, format string, args []any) {
	r.mu.Lock()
	*outcome = true
	r.message = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// replay tells t what happened.
func (r *recorder) replay(t *testing.T) {
	t.Helper()
	switch {
	case r.failed:
		t.Fatal(r.message)
	case r.skipped:
		t.Skip(r.message)
	}
}
