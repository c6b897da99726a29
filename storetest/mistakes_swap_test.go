package storetest

import (
	"bytes"
	"context"
	"slices"
	"time"
)

var batchMistakes = []mistake{
	{"the server's order", "getmany-order", "getmany-sizes getmany-bytes getmany-one-moment?", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			keys = slices.Clone(keys)
			slices.Sort(keys)
			return s.lab.GetMany(ctx, keys)
		}
	}},
	{"a key asked twice comes once", "getmany-order", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			values, err := s.lab.GetMany(ctx, keys)
			for i := range values {
				if slices.Index(keys, keys[i]) < i {
					values[i] = nil
				}
			}
			return values, err
		}
	}},
	{"a page of 100", "getmany-sizes", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			values, err := s.lab.GetMany(ctx, keys)
			for i := 100; i < len(values); i++ {
				values[i] = nil
			}
			return values, err
		}
	}},
	{"a text column", "getmany-bytes", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			values, err := s.lab.GetMany(ctx, keys)
			for i, v := range values {
				if v != nil {
					values[i] = bytes.ToValidUTF8(v, []byte("?"))
				}
			}
			return values, err
		}
	}},
	{"serves what is not purged", "getmany-expired", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			values, err := s.lab.GetMany(ctx, keys)
			for i := range values {
				if v, ok := s.expired(keys[i]); ok {
					values[i] = v
				}
			}
			return values, err
		}
	}},
	{"one Get after the other", "getmany-one-moment", "", func(s *broken) {
		s.getMany = func(ctx context.Context, keys []string) ([][]byte, error) {
			var values [][]byte
			for _, key := range keys {
				v, _, err := s.lab.Get(ctx, key)
				if err != nil {
					return nil, err
				}
				values = append(values, v)
				s.pause()
			}
			return values, nil
		}
	}},
	{"does not delete", "putdelete", "", func(s *broken) {
		s.putDelete = func(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
			return s.lab.Put(ctx, put, value, ttl)
		}
	}},
	{"a life of its own", "putdelete-life", "", func(s *broken) {
		s.putDelete = func(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
			if ttl > 0 {
				ttl = max(ttl, long)
			}
			return s.lab.PutDelete(ctx, put, value, ttl, del)
		}
	}},
	{"deletes, then puts", "putdelete-order", "", func(s *broken) {
		s.putDelete = func(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
			if ttl > 0 && ctx.Err() == nil {
				s.lab.Delete(ctx, del)
				s.pause()
			}
			return s.lab.Put(ctx, put, value, ttl)
		}
	}},
}

var swapMistakes = []mistake{
	{"a collation that ignores case", "swap", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if now, found, _ := s.lab.Get(ctx, key); found && bytes.EqualFold(now, old) {
				old = now
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"strings end at NUL", "swap", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			before, _, cut := bytes.Cut(old, []byte{0})
			if now, found, _ := s.lab.Get(ctx, key); found && cut && bytes.HasPrefix(now, before) {
				old = now
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"nil is anything", "swap-absent", "swap-loser-life swap-one-wins", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if old == nil {
				err := s.lab.Put(ctx, key, new, ttl)
				return err == nil, err
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"creates what was never there", "swap-missing", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if _, known := s.last(key); !known {
				old = nil
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"a text column", "swap-bytes", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			return s.lab.CompareAndSwap(ctx, key, old, bytes.ToValidUTF8(new, []byte("?")), ttl)
		}
	}},
	{"keeps the old life", "swap-life", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if left := s.left(key); left > 0 && ttl > 0 {
				ttl = left
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"a loser extends", "swap-loser-life", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			swapped, err := s.lab.CompareAndSwap(ctx, key, old, new, ttl)
			if err == nil && !swapped && ttl > s.left(key) {
				s.lab.Touch(ctx, key, ttl)
			}
			return swapped, err
		}
	}},
	{"a loser shortens", "swap-loser-life", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			swapped, err := s.lab.CompareAndSwap(ctx, key, old, new, ttl)
			if err == nil && !swapped && ttl < s.left(key) {
				s.lab.Touch(ctx, key, ttl)
			}
			return swapped, err
		}
	}},
	{"what is not purged is there", "swap-expired", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if _, ok := s.expired(key); ok && old == nil && ctx.Err() == nil {
				return false, nil
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"what is not purged can be swapped", "swap-expired", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			if v, ok := s.expired(key); ok && bytes.Equal(v, old) {
				old = nil
			}
			return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
		}
	}},
	{"reads, then puts, if it is missing", "swap-one-wins", "", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			_, found, _ := s.lab.Get(ctx, key)
			if old != nil || found {
				return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
			}
			s.pause()
			err := s.lab.Put(ctx, key, new, ttl)
			return err == nil, err
		}
	}},
	{"reads, then puts", "swap-counts", "swap-one-wins?", func(s *broken) {
		s.swap = func(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
			now, found, _ := s.lab.Get(ctx, key)
			if old == nil || !found || !bytes.Equal(now, old) {
				return s.lab.CompareAndSwap(ctx, key, old, new, ttl)
			}
			s.pause()
			err := s.lab.Put(ctx, key, new, ttl)
			return err == nil, err
		}
	}},
}
