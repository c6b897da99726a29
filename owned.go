package sessionshare

import (
	"context"
	"sync"
)

// ownership is the Replica's account of its goroutines: none runs that Shutdown
// does not know of.
type ownership struct {
	mu      sync.Mutex // guards all below
	running int
	idle    chan struct{} // closed when running falls to zero; nil if nobody waits
	stopped bool

	stop chan struct{} // closed by signal: what runs in the background ends
}

// run runs f on a goroutine of its own. Work that must be finished, such as the
// end of a copy, is run even after signal.
func (o *ownership) run(f func()) {
	o.enter()
	go func() {
		defer o.leave()
		f()
	}()
}

func (o *ownership) enter() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running++
}

func (o *ownership) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running--; o.running == 0 && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// signal tells background work to end.
func (o *ownership) signal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stopped {
		o.stopped = true
		close(o.stop)
	}
}

func (o *ownership) signalled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopped
}

// wait waits until nothing runs, or ctx is done.
func (o *ownership) wait(ctx context.Context) error {
	o.mu.Lock()
	if o.running == 0 {
		o.mu.Unlock()
		return nil
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
