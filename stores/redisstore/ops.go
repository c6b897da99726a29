package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Get implements [sessionshare.SharedStore].
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	value, err := call(s, ctx, "Get", func(ctx context.Context) ([]byte, error) {
		value, err := s.client.Get(ctx, s.opts.Prefix+key).Bytes()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		return value, err
	})
	return value, value != nil, err
}

// GetMany implements [sessionshare.BatchGetter] with one MGET, which is atomic.
func (s *Store) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = s.opts.Prefix + key
	}
	return call(s, ctx, "GetMany", func(ctx context.Context) ([][]byte, error) {
		answers, err := s.client.MGet(ctx, names...).Result()
		if err != nil {
			return nil, err
		}
		if len(answers) != len(names) {
			return nil, fmt.Errorf("the server answered with %d values for %d keys", len(answers), len(names))
		}
		values := make([][]byte, len(answers))
		for i, answer := range answers {
			if values[i], err = valueOf(answer); err != nil {
				return nil, err
			}
		}
		return values, nil
	})
}

// Put implements [sessionshare.SharedStore].
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	ms, text, err := s.input(ctx, "Put", value, ttl)
	if err != nil {
		return err
	}
	return s.do(ctx, "Put", func(ctx context.Context) error {
		return s.client.Set(ctx, s.opts.Prefix+key, text, ms).Err()
	})
}

// Delete implements [sessionshare.SharedStore].
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, "Delete", func(ctx context.Context) error {
		return s.client.Del(ctx, s.opts.Prefix+key).Err()
	})
}

// Touch implements [sessionshare.Toucher] with PEXPIRE, which answers 0 for a
// key that is missing or has expired, and then does nothing. It does not use
// GT: that answers 0 also for a key that has longer to live.
func (s *Store) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	ms, err := milliseconds(ttl)
	if err != nil {
		return false, fail(ctx, "Touch", err)
	}
	return call(s, ctx, "Touch", func(ctx context.Context) (bool, error) {
		return s.client.PExpire(ctx, s.opts.Prefix+key, ms).Result()
	})
}

// PutDelete implements [sessionshare.PutDeleter] with MULTI and EXEC in one
// round trip. A plain pipeline would not do: if the server refuses the SET, for
// want of memory perhaps, it would still run the DEL.
func (s *Store) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	ms, text, err := s.input(ctx, "PutDelete", value, ttl)
	if err != nil {
		return err
	}
	return s.do(ctx, "PutDelete", func(ctx context.Context) error {
		_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, s.opts.Prefix+put, text, ms)
			p.Del(ctx, s.opts.Prefix+del)
			return nil
		})
		return err
	})
}

// swapScript compares and swaps. ARGV: whether the key must be there, the old
// value, the new one, the ttl in milliseconds. A script runs alone, at one moment.
const swapScript = `
local value = redis.call('GET', KEYS[1])
if ARGV[1] == '1' and value ~= ARGV[2] or ARGV[1] == '0' and value then
	return 0
end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return 1`

var swapHash = func() string {
	sum := sha1.Sum([]byte(swapScript)) // how Redis names scripts
	return hex.EncodeToString(sum[:])
}()

// once is a command that the client sends no second time by itself. If a swap
// was made and its answer lost, the same swap again would report that it was not.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// CompareAndSwap implements [sessionshare.CompareAndSwapper].
func (s *Store) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	ms, text, err := s.input(ctx, "CompareAndSwap", new, ttl)
	if err != nil {
		return false, err
	}
	there, was := "0", ""
	if old != nil {
		there, was = "1", string(old)
	}
	return call(s, ctx, "CompareAndSwap", func(ctx context.Context) (bool, error) {
		eval := func(command, script string) (int64, error) {
			cmd := once{redis.NewCmd(ctx, command, script, 1, s.opts.Prefix+key, there, was, text, ms.Milliseconds())}
			_ = s.client.Process(ctx, cmd) // Int64 has the error
			return cmd.Int64()
		}
		swapped, err := eval("evalsha", swapHash)
		if redis.HasErrorPrefix(err, "NOSCRIPT") { // the server was restarted
			swapped, err = eval("eval", swapScript)
		}
		return swapped == 1, err
	})
}

// input checks what is to be stored. The text is a copy of the value, since a
// call that returned early may still be sending it.
func (s *Store) input(ctx context.Context, method string, value []byte, ttl time.Duration) (ms time.Duration, text string, err error) {
	ms, err = milliseconds(ttl)
	if err == nil && len(value) == 0 {
		err = errEmpty
	}
	if err != nil {
		return 0, "", fail(ctx, method, err)
	}
	return ms, string(value), nil
}

func (s *Store) do(ctx context.Context, method string, f func(context.Context) error) error {
	_, err := call(s, ctx, method, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f(ctx)
	})
	return err
}
