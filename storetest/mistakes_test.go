package storetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

var byteMistakes = []mistake{
	{"a missing key is an empty value", "get-missing", "", func(s *broken) {
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			if err == nil && !found {
				value = []byte{}
			}
			return value, found, err
		}
	}},
	{"forgets what is put first", "put-get", "put-replaces-value? any-bytes value-sizes key-sizes key-characters copies-in copies-out " +
		"expiry-not-early long-ttl visible-at-once concurrent-puts? reads-go-forward? ttl-not-positive touch-extends touch-expires touch-never-ends " +
		"touch-deleted touch-keeps-value touch-tiny-ttl touch-ttl-not-positive touch-races-expiry? getmany-bytes getmany-one-moment? putdelete-order? putdelete-life? " +
		"swap swap-life swap-loser-life swap-one-wins swap-counts? sweep-spares put-shortens? put-lengthens? sweep-races-put?", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if _, known := s.last(key); !known && ctx.Err() == nil && ttl > 0 {
				s.note(key, value, ttl)
				return nil
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"leaves the tail of a longer value", "put-replaces-value", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if old, found, _ := s.lab.Get(ctx, key); found && len(old) > len(value) {
				value = append(bytes.Clone(value), old[len(value):]...)
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"does not delete", "delete", "key-sizes key-characters visible-at-once touch-deleted swap-missing touch-races-delete expiry-not-late?", func(s *broken) {
		s.del = func(ctx context.Context, key string) error { return ctx.Err() }
	}},
	{"a deleted key cannot be put again", "delete", "visible-at-once", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if e, ok := s.last(key); ok && e.deleted && s.left(key) == 0 && time.Now().Before(e.expires) {
				return ctx.Err()
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"not found is an error", "delete-missing", "", func(s *broken) {
		s.del = func(ctx context.Context, key string) error {
			if _, known := s.last(key); !known && ctx.Err() == nil {
				return errors.New("not found")
			}
			return s.lab.Delete(ctx, key)
		}
	}},
	{"a text column", "any-bytes", "getmany-bytes", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			return s.lab.Put(ctx, key, bytes.ToValidUTF8(value, []byte("?")), ttl)
		}
	}},
	{"trims spaces", "any-bytes", "getmany-bytes", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			return s.lab.Put(ctx, key, bytes.TrimSpace(value), ttl)
		}
	}},
	{"a column of 64 KiB", "value-sizes", "getmany-bytes", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			return s.lab.Put(ctx, key, value[:min(len(value), 64<<10)], ttl)
		}
	}},
	{"a key column of 191", "key-sizes", "", func(s *broken) {
		s.key = func(key string) string { return key[:min(len(key), 191)] }
	}},
	{"a key that is a pattern", "key-characters", "", func(s *broken) {
		s.key = func(key string) string { return strings.ReplaceAll(key, "_", "-") }
	}},
	{"dots are folders", "key-characters", "", func(s *broken) {
		s.key = func(key string) string { return strings.Trim(strings.ReplaceAll(key, "..", "."), ".") }
	}},
	{"keeps the caller's slice", "copies-in", "", func(s *broken) {
		var mu sync.Mutex
		given, was := map[string][]byte{}, map[string]string{}
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			mu.Lock()
			given[key], was[key] = value, string(value)
			mu.Unlock()
			return s.lab.Put(ctx, key, value, ttl)
		}
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if found && was[key] == string(value) {
				return bytes.Clone(given[key]), found, err
			}
			return value, found, err
		}
	}},
	{"hands out its own slice", "copies-out", "", func(s *broken) {
		var mu sync.Mutex
		own, was := map[string][]byte{}, map[string]string{}
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if !found || was[key] != string(value) {
				own[key], was[key] = value, string(value)
			}
			return own[key], found, err
		}
	}},
	{"values of one GetMany share bytes", "copies-out", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			values, err := s.lab.GetMany(ctx, keys)
			for i := range values {
				values[i] = values[slices.Index(keys, keys[i])]
			}
			return values, err
		}
	}},
}

var lifeMistakes = []mistake{
	{"nine tenths of the ttl", "expiry-not-early", "touch-races-expiry?", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > 0 {
				ttl = ttl*9/10 + 1
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"truncates to milliseconds", "expiry-not-early", "touch-races-expiry?", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > time.Millisecond {
				ttl = ttl.Truncate(time.Millisecond)
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"serves what is not purged", "expiry-not-late", "tiny-ttl put-shortens touch-expires touch-expired touch-races-expiry? putdelete-life? " +
		"swap-life? swap-loser-life sweep-hides-expired", func(s *broken) {
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			if value, ok := s.expired(key); ok && ctx.Err() == nil {
				return bytes.Clone(value), true, nil
			}
			return s.lab.Get(ctx, key)
		}
	}},
	{"expires 150 ms late", "expiry-not-late", "tiny-ttl put-shortens touch-expired getmany-expired swap-loser-life swap-expired sweep-hides-expired", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > 0 {
				ttl += 150 * time.Millisecond
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"zero is for ever", "tiny-ttl", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > 0 && ttl < time.Millisecond {
				ttl = long
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"milliseconds in 32 bits", "long-ttl", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > time.Millisecond {
				ttl = time.Duration(int32(ttl.Milliseconds()))*time.Millisecond + ttl%time.Millisecond
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"never lengthens", "put-lengthens", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if left := s.left(key); left > 0 {
				ttl = min(ttl, left)
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"never shortens", "put-shortens", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl > 0 {
				ttl = max(ttl, s.left(key))
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"no ttl is for ever", "ttl-not-positive", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl <= 0 {
				ttl = long
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"a bad ttl deletes", "ttl-not-positive", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			if ttl <= 0 {
				s.lab.Delete(ctx, key)
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"remembers misses", "visible-at-once", "delete? put-lengthens? expiry-not-late swap-absent? swap-expired? swap-missing? ttl-not-positive? reads-go-forward?", func(s *broken) {
		var mu sync.Mutex
		missing := map[string]time.Time{}
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(missing[key]) < 10*time.Millisecond && ctx.Err() == nil {
				return nil, false, nil
			}
			value, found, err := s.lab.Get(ctx, key)
			if err == nil && !found {
				missing[key] = time.Now()
			}
			return value, found, err
		}
	}},
	{"writes in two halves", "concurrent-puts", "", func(s *broken) {
		s.put = func(ctx context.Context, key string, value []byte, ttl time.Duration) error {
			old, found, _ := s.lab.Get(ctx, key)
			if half := len(value) / 2; found && len(old) == len(value) && half > 1000 {
				s.lab.Put(ctx, key, slices.Concat(value[:half], old[half:]), ttl)
				s.pause()
				if now, found, _ := s.lab.Get(ctx, key); found {
					return s.lab.Put(ctx, key, slices.Concat(now[:half], value[half:]), ttl)
				}
			}
			return s.lab.Put(ctx, key, value, ttl)
		}
	}},
	{"reads a follower now and then", "reads-go-forward", "", func(s *broken) {
		var mu sync.Mutex
		before := map[string][]byte{}
		reads := 0
		s.get = func(ctx context.Context, key string) ([]byte, bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if old := before[key]; bytes.HasPrefix(value, []byte("step")) {
				before[key] = value
				if reads++; reads%3 == 0 && old != nil {
					return []byte("step 00"), found, err
				}
			}
			return value, found, err
		}
	}},
}
