package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

var hintMistakes = []mistake{
	{"the publisher does not hear itself", "publish-delivers", "subscribe-one-goroutine subscribe-ends", func(s *broken) {
		var mine sync.Map
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			mine.Store(channel+string(msg), true)
			return s.lab.Publish(ctx, channel, msg)
		}
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			return s.lab.Subscribe(ctx, channels, func(channel string, msg []byte) {
				if _, ok := mine.Load(channel + string(msg)); !ok {
					deliver(channel, msg)
				}
			})
		}
	}},
	{"nobody there is an error", "publish-nobody", "subscribe-channels", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			for range 100 {
				s.mu.Lock()
				known := slices.Contains(s.subs, channel)
				s.mu.Unlock()
				if known || ctx.Err() != nil {
					return s.lab.Publish(ctx, channel, msg)
				}
				time.Sleep(time.Millisecond)
			}
			return errors.New("nobody is subscribed")
		}
	}},
	{"text only", "publish-bytes", "", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			return s.lab.Publish(ctx, channel, bytes.ToValidUTF8(msg, []byte("?")))
		}
	}},
	{"drops what is over 4,000 bytes", "publish-bytes", "", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			return s.lab.Publish(ctx, channel, msg[:min(len(msg), 4000)])
		}
	}},
	{"a goroutine for each message", "publish-order", "subscribe-no-gap?", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			msg = bytes.Clone(msg)
			go func() {
				time.Sleep(rand.N(3 * time.Millisecond))
				s.lab.Publish(context.WithoutCancel(ctx), channel, msg)
			}()
			return ctx.Err()
		}
	}},
	{"a channel is a prefix", "subscribe-channels", "", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			if i := strings.LastIndexByte(channel, '.'); i > 0 {
				s.lab.Publish(ctx, channel[:i], msg)
			}
			return s.lab.Publish(ctx, channel, msg)
		}
	}},
	{"the first eight channels", "subscribe-channels", "", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			return s.lab.Subscribe(ctx, channels[:min(len(channels), 8)], deliver)
		}
	}},
	{"always the first channel's name", "subscribe-channels", "publish-order", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			return s.lab.Subscribe(ctx, channels, func(_ string, msg []byte) { deliver(channels[0], msg) })
		}
	}},
	{"one buffer for all messages", "subscribe-keeps", "", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			buffer := make([]byte, 8<<10)
			return s.lab.Subscribe(ctx, channels, func(channel string, msg []byte) {
				deliver(channel, buffer[:copy(buffer, msg)])
			})
		}
	}},
	{"the publisher's slice is sent later", "subscribe-keeps", "", func(s *broken) {
		var later [][]byte
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			if bytes.HasPrefix(msg, []byte("hint")) {
				later = append(later, msg)
				return ctx.Err()
			}
			for _, msg := range later {
				s.lab.Publish(ctx, channel, msg)
			}
			later = nil
			return s.lab.Publish(ctx, channel, msg)
		}
	}},
	{"a goroutine for each channel", "subscribe-one-goroutine", "publish-order? subscribe-channels?", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			var wg sync.WaitGroup
			for _, c := range channels[1:] {
				wg.Go(func() { s.lab.Subscribe(ctx, []string{c}, deliver) })
			}
			err := s.lab.Subscribe(ctx, channels[:1], deliver)
			wg.Wait()
			return err
		}
	}},
	{"drops what a slow subscriber does not take", "subscribe-no-gap", "", func(s *broken) {
		s.publish = func(ctx context.Context, channel string, msg []byte) error {
			time.Sleep(time.Microsecond) // no faster than the lab can take it, which would notice
			return s.lab.Publish(ctx, channel, msg)
		}
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			type message struct {
				channel string
				msg     []byte
			}
			queue := make(chan message, 500)
			var wg sync.WaitGroup
			wg.Go(func() {
				for m := range queue {
					deliver(m.channel, m.msg)
				}
			})
			err := s.lab.Subscribe(ctx, channels, func(channel string, msg []byte) {
				select {
				case queue <- message{channel, msg}:
				default:
				}
			})
			close(queue)
			wg.Wait()
			return err
		}
	}},
	{"the end is no error", "subscribe-ends", "", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			s.lab.Subscribe(ctx, channels, deliver)
			return nil
		}
	}},
	{"ends when the next message comes", "subscribe-ends", "", func(s *broken) {
		s.subscribe = func(ctx context.Context, channels []string, deliver func(string, []byte)) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := s.lab.Subscribe(ctx, channels, deliver)
			time.Sleep(5 * time.Second)
			return err
		}
	}},
}

var otherMistakes = []mistake{
	{"what has a minute left is as good as dead", "sweep-spares", "", func(s *broken) {
		s.sweep = func(ctx context.Context) error {
			for _, key := range s.keys() {
				if left := s.left(key); left > 0 && left <= time.Minute {
					s.lab.Delete(ctx, key)
				}
			}
			return ctx.Err()
		}
	}},
	{"one sweep at a time", "sweep-together", "sweep-races-put?", func(s *broken) {
		s.sweep = func(ctx context.Context) error {
			if !s.sweeping.CompareAndSwap(0, 1) {
				return errors.New("somebody else sweeps")
			}
			defer s.sweeping.Store(0)
			s.pause()
			return s.lab.Sweep(ctx)
		}
	}},
	{"looks, then deletes", "sweep-races-put", "", func(s *broken) {
		s.sweep = func(ctx context.Context) error {
			var found []string
			for _, key := range s.keys() {
				if e, _ := s.last(key); !e.deleted && s.left(key) == 0 {
					found = append(found, key)
				}
			}
			s.pause()
			for _, key := range found {
				s.lab.Delete(ctx, key)
			}
			return ctx.Err()
		}
	}},
	{"the sweeper decides what has expired", "sweep-hides-expired", "", func(s *broken) {
		s.sweep = func(ctx context.Context) error {
			s.sweeping.Add(1)
			defer s.sweeping.Add(-1)
			s.pause()
			return s.lab.Sweep(ctx)
		}
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			if v, ok := s.expired(key); ok && s.sweeping.Load() > 0 {
				return v, true, nil
			}
			return s.lab.Get(ctx, key)
		}
	}},
	{"returns the cause", "context-cancelled", "", func(s *broken) {
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			if ctx.Err() != nil {
				return nil, false, context.Cause(ctx)
			}
			return s.lab.Get(ctx, key)
		}
	}},
	{"returns the network's time-out", "context-expired", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return false, os.ErrDeadlineExceeded
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"does not look at ctx", "context-cancelled", "context-expired", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			return s.lab.Put(context.WithoutCancel(ctx), key, value, ttl)
		}
	}},
	{"names the key", "errors-name-nothing", "", func(s *broken) {
		s.del = func(ctx context.Context, key string) error {
			if err := s.lab.Delete(ctx, key); err != nil {
				return fmt.Errorf("delete %s: %w", key, err)
			}
			return nil
		}
	}},
	{"names the value", "errors-name-nothing", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if err := s.lab.Put(ctx, key, value, ttl); err != nil {
				return fmt.Errorf("put %q for %v: %w", value, ttl, err)
			}
			return nil
		}
	}},
	{"its own time-out", "stalled", "", func(s *broken) {
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			if s.hang.wait(ctx) != nil {
				time.Sleep(5 * time.Second)
				return nil, false, ctx.Err()
			}
			return s.lab.Get(ctx, key)
		}
	}},
	{"an outage is a miss", "stalled", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if s.hang.wait(ctx) != nil {
				return false, nil
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"an error of its own", "stalled", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if s.hang.wait(ctx) != nil {
				return errors.New("the database is locked")
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
}
