package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// pingInterval is how often a subscription on which nothing arrives asks the
// server whether it is still there. Without an answer to two of them it breaks.
const pingInterval = 10 * time.Second

// Publish implements [sessionshare.PubSub]. Channels are not bound to the
// database number of the client. On a cluster they are sharded, which needs
// Redis 7: the client publishes ordinary messages through any node, and what
// one publisher sent through two of them arrives in any order.
func (s *Store) Publish(ctx context.Context, channel string, msg []byte) error {
	text := string(msg)
	return s.do(ctx, "Publish", func(ctx context.Context) error {
		if s.sharded {
			return s.client.SPublish(ctx, s.opts.Prefix+channel, text).Err()
		}
		return s.client.Publish(ctx, s.opts.Prefix+channel, text).Err()
	})
}

var (
	errBroken = errors.New("the connection was made anew, messages may be missing")
	errSilent = errors.New("the server does not answer")
)

// Subscribe implements [sessionshare.PubSub], on a connection of its own. The
// client would make that connection anew when it breaks, and go on as if
// nothing had been missed; here it ends.
func (s *Store) Subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error {
	if err := ctx.Err(); err != nil {
		return fail(ctx, "Subscribe", err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex // guards over, and deliver runs under it
	over := false
	ended := make(chan error, 1)
	// On a goroutine of its own, since the client does not notice the end of ctx
	// while it connects.
	go func() {
		ended <- s.receive(running, channels, func(m *redis.Message) {
			mu.Lock()
			defer mu.Unlock()
			if !over {
				deliver(m.Channel[len(s.opts.Prefix):], []byte(m.Payload))
			}
		})
	}()
	select {
	case err := <-ended:
		return fail(ctx, "Subscribe", err)
	case <-ctx.Done():
		mu.Lock()
		over = true
		mu.Unlock()
		return fail(ctx, "Subscribe", ctx.Err())
	}
}

// receive subscribes and hands out what arrives, until that breaks or ctx ends.
func (s *Store) receive(ctx context.Context, channels []string, deliver func(*redis.Message)) error {
	names := make([]string, len(channels))
	for i, channel := range channels {
		names[i] = s.opts.Prefix + channel
	}
	subscribe := s.client.Subscribe
	if s.sharded {
		subscribe = s.client.SSubscribe
	}
	sub := subscribe(ctx, names...)
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	var p pulse
	p.beat()
	go p.watch(ctx, sub, s.pingEvery)
	for confirmed := 0; ; {
		got, err := sub.Receive(ctx)
		if err != nil {
			if p.dead.Load() {
				return errSilent
			}
			return err
		}
		p.beat()
		switch m := got.(type) {
		case *redis.Message:
			deliver(m)
		case *redis.Subscription:
			// Each channel is confirmed once. Once more: this is another connection,
			// or the slot has moved to another node.
			if confirmed++; confirmed > len(channels) {
				return errBroken
			}
		case *redis.Pong:
		default:
			return fmt.Errorf("the server sent a %T", got)
		}
	}
}

// pulse knows when something last arrived on a subscription.
type pulse struct {
	last atomic.Pointer[time.Time]
	dead atomic.Bool
}

func (p *pulse) beat() {
	now := time.Now()
	p.last.Store(&now)
}

// watch pings while nothing arrives, and closes the subscription when that does
// not help: a server that vanished without a word would otherwise be waited for
// for ever. It ends with ctx.
func (p *pulse) watch(ctx context.Context, sub *redis.PubSub, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch quiet := time.Since(*p.last.Load()); {
		case quiet > 2*every+every/2:
			p.dead.Store(true)
			_ = sub.Close()
			return
		case quiet > every/2:
			_ = sub.Ping(ctx) // if it fails, so does the receiver
		}
	}
}
