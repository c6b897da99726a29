package natsstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// queue is how many hints wait for deliver before the client drops some, and
// Subscribe returns.
const queue = 4096

// pingInterval is how often a subscription asks whether the server is still
// there, and how long it waits for the answer. The connection asks too, but
// every two minutes if nobody has told it otherwise.
const pingInterval = 5 * time.Second

var (
	errSilent  = errors.New("the server is silent, hints may have been missed")
	errBroken  = errors.New("the connection broke, hints may have been missed")
	errDropped = errors.New("deliver was too slow, hints were missed")
)

// Publish implements [sessionshare.PubSub] with core NATS: nothing is stored.
func (s *Store) Publish(ctx context.Context, channel string, msg []byte) error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	subject, msg := s.channel(channel), bytes.Clone(msg)
	if err := await(ctx, func() error { return s.nc.Publish(subject, msg) }); err != nil {
		return failed(ctx, "publish", err)
	}
	return nil
}

func (s *Store) channel(name string) string {
	return s.hints + strings.ReplaceAll(name, ".", "/")
}

// Subscribe implements [sessionshare.PubSub]. The client would subscribe again
// by itself after its connection broke, and nobody would know of the gap: so
// Subscribe returns then, when the server is silent, and when deliver is so slow
// that hints were dropped.
func (s *Store) Subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error {
	if err := s.subscribe(ctx, channels, deliver); err != nil {
		return failed(ctx, "subscribe", err)
	}
	return nil
}

func (s *Store) subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error {
	sub := &subscription{nc: s.nc, msgs: make(chan *nats.Msg, queue), names: map[string]string{}}
	for _, c := range channels {
		sub.names[s.channel(c)] = c
	}
	setup, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- sub.start(setup) }()
	select {
	case err := <-started:
		// Not waited for: it needs the lock of a connection that may be stuck.
		defer func() { go sub.stop() }()
		if err != nil {
			return err
		}
		return sub.run(ctx, s.pingEvery, deliver)
	case <-setup.Done():
		go func() {
			<-started
			sub.stop()
		}()
		return setup.Err()
	}
}

// A subscription is what one Subscribe holds. It is used by one goroutine at a
// time: start, then run, then stop.
type subscription struct {
	nc     *nats.Conn
	names  map[string]string // of channels, by subject
	status chan nats.Status
	subs   []*nats.Subscription
	msgs   chan *nats.Msg
}

// start returns when the server knows of the subscription. It listens for
// breaks first, so that none goes unseen.
func (sub *subscription) start(ctx context.Context) error {
	sub.status = sub.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	if !sub.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	for subject := range sub.names {
		one, err := sub.nc.ChanSubscribe(subject, sub.msgs)
		if err != nil {
			return err
		}
		sub.subs = append(sub.subs, one)
	}
	return sub.nc.FlushWithContext(ctx)
}

func (sub *subscription) run(ctx context.Context, every time.Duration, deliver func(channel string, msg []byte)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := make(chan struct{})
	go func() {
		defer close(silent)
		for sub.answers(ctx, every) {
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-sub.status:
			return errBroken
		case <-silent:
			return cmp.Or(ctx.Err(), errSilent)
		case m := <-sub.msgs:
			deliver(sub.names[m.Subject], m.Data)
			// A message is dropped only while the queue is full, and then it still
			// is but for this one.
			if len(sub.msgs) >= queue-1 && sub.dropped() {
				return errDropped
			}
		}
	}
}

// answers says, after a while, whether the server answers. It does not once ctx
// has ended.
func (sub *subscription) answers(ctx context.Context, every time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(every):
	}
	ctx, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	return await(ctx, func() error { return sub.nc.FlushWithContext(ctx) }) == nil
}

func (sub *subscription) dropped() bool {
	for _, one := range sub.subs {
		if n, err := one.Dropped(); n > 0 || err != nil {
			return true
		}
	}
	return false
}

func (sub *subscription) stop() {
	sub.nc.RemoveStatusListener(sub.status)
	for _, one := range sub.subs {
		one.Unsubscribe()
	}
}
