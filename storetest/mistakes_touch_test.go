package storetest

import (
	"bytes"
	"context"
	"time"
)

var touchMistakes = []mistake{
	{"does nothing", "touch-extends", "touch-races-expiry?", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl <= 0 || ctx.Err() != nil {
				return s.lab.Touch(ctx, key, ttl)
			}
			_, found, err := s.lab.Get(ctx, key)
			return found, err
		}
	}},
	{"for ever", "touch-expires", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl > 0 {
				ttl = max(ttl, long)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"sets half the ttl", "touch-never-ends", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl > time.Millisecond {
				ttl /= 2
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"creates", "touch-missing", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if _, known := s.last(key); !known && ttl > 0 {
				return false, s.lab.Put(ctx, key, []byte("1"), ttl)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"revives the deleted", "touch-deleted", "touch-races-delete?", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if e, ok := s.last(key); ok && e.deleted && ttl > 0 {
				return true, s.lab.Put(ctx, key, e.value, ttl)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"revives what is not purged", "touch-expired", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if value, ok := s.expired(key); ok && ttl > 0 {
				return true, s.lab.Put(ctx, key, value, ttl)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"puts what it read", "touch-keeps-value", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			if err != nil || !found || ttl <= 0 {
				return s.lab.Touch(ctx, key, ttl)
			}
			s.pause()
			if now, _, _ := s.lab.Get(ctx, key); now != nil && !bytes.Equal(now, value) {
				return s.lab.CompareAndSwap(ctx, key, now, value, ttl)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"a bad ttl deletes", "touch-ttl-not-positive", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl <= 0 && ctx.Err() == nil {
				return true, s.lab.Delete(ctx, key)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"a bad ttl is an error, but deletes", "touch-ttl-not-positive", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl <= 0 {
				s.lab.Delete(ctx, key)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"a tiny ttl is none", "touch-tiny-ttl", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			if ttl > 0 && ttl < time.Millisecond {
				return false, s.lab.Delete(ctx, key)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"puts what it read, if it is gone", "touch-races-delete", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			value, found, err := s.lab.Get(ctx, key)
			if err != nil || !found || ttl <= 0 {
				return s.lab.Touch(ctx, key, ttl)
			}
			s.pause()
			if e, ok := s.last(key); ok && e.deleted {
				return true, s.lab.Put(ctx, key, value, ttl)
			}
			return s.lab.Touch(ctx, key, ttl)
		}
	}},
	{"extends at the last moment, and says missing", "touch-races-expiry", "", func(s *broken) {
		s.touch = func(ctx context.Context, key string, ttl time.Duration) (bool, error) {
			last := s.left(key) < 5*time.Millisecond
			found, err := s.lab.Touch(ctx, key, ttl)
			return found && !last, err
		}
	}},
}
