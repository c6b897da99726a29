package sessionshare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds on what a host keeps with a session.
const (
	maxData      = 64 << 10 // bytes of names and values in all
	maxDataNames = 16
)

// What the host keeps with a session is one key, so that it lives and dies with
// the record: a JSON object from names to values.
type sessionData map[string][]byte

func (d sessionData) size() (n int) {
	for name, value := range d {
		n += len(name) + len(value)
	}
	return n
}

var errDataUnusable = errors.New("sessionshare: the data of this session does not decode")

func decodeData(b []byte) (sessionData, error) {
	if b == nil {
		return nil, nil
	}
	var d sessionData
	if len(b) > MaxValueBytes || json.Unmarshal(b, &d) != nil {
		return nil, errDataUnusable
	}
	return d, nil
}

// Load returns what [Session.LoadOrStore] has stored under name, on whichever
// replica. It reads the store each time. The caller may change the slice.
func (s *Session) Load(ctx context.Context, name string) (value []byte, found bool, err error) {
	d, _, err := s.readData(ctx)
	if err != nil {
		return nil, false, err
	}
	value, found = d[name]
	return bytes.Clone(value), found, nil
}

func (s *Session) readData(ctx context.Context) (d sessionData, raw []byte, err error) {
	if s.r.store == nil {
		s.local.mu.Lock()
		defer s.local.mu.Unlock()
		d, err = decodeData(s.local.raw)
		return d, s.local.raw, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	values, err := s.r.store.get(ctx, s.r.keys.data(s.digest))
	if err != nil {
		return nil, nil, fmt.Errorf("sessionshare: the data of this session cannot be read: %w", err)
	}
	d, err = decodeData(values[0])
	return d, values[0], err
}

// LoadOrStore returns what is stored under name, or stores value if there is
// nothing: the first one wins, on all replicas, and everybody gets to see what it
// stored. It is for what must exist once per session, such as a session with an
// upstream server. A session holds at most 16 names, in UTF-8, and 64 KiB of names
// and values, for as long as it lives.
//
// It needs a store that is a [CompareAndSwapper], or none at all; else it returns
// errors.ErrUnsupported. After another error value may have been stored.
func (s *Session) LoadOrStore(ctx context.Context, name string, value []byte) (actual []byte, loaded bool, err error) {
	if s.r.store != nil && s.r.store.swapper == nil {
		return nil, false, fmt.Errorf("sessionshare: LoadOrStore needs a store that is a CompareAndSwapper: %w", errors.ErrUnsupported)
	}
	if !utf8.ValidString(name) {
		// JSON would change it, and nobody would find what is stored under it.
		return nil, false, errors.New("sessionshare: a name given to LoadOrStore must be UTF-8")
	}
	if cause := s.over(); cause != nil {
		return nil, false, cause
	}
	for {
		d, raw, err := s.readData(ctx)
		if err != nil {
			return nil, false, err
		}
		if actual, ok := d[name]; ok {
			return bytes.Clone(actual), true, nil
		}
		if d == nil {
			d = sessionData{}
		}
		d[name] = append([]byte{}, value...)
		if len(d) > maxDataNames || d.size() > maxData {
			return nil, false, fmt.Errorf("sessionshare: a session keeps at most %d names and %d bytes", maxDataNames, maxData)
		}
		b, err := json.Marshal(d)
		if err != nil {
			return nil, false, err
		}
		swapped, err := s.swapData(ctx, raw, b)
		if err != nil {
			return nil, false, fmt.Errorf("sessionshare: the data of this session may not have been stored: %w", err)
		}
		if swapped {
			return bytes.Clone(value), false, nil
		}
	}
}

func (s *Session) swapData(ctx context.Context, old, new []byte) (bool, error) {
	if s.r.store == nil {
		s.local.mu.Lock()
		defer s.local.mu.Unlock()
		if !bytes.Equal(s.local.raw, old) {
			return false, nil
		}
		s.local.raw = new
		return true, nil
	}
	swapped, err := s.r.store.swap(ctx, s.r.keys.data(s.digest), old, new, s.rec.idle())
	if swapped || err != nil {
		if s.c != nil {
			s.r.owned.run(func() { s.c.noteData(context.Background()) })
		}
	}
	return swapped, err
}

// noteData notes that the host keeps data with the session, so that every replica
// touches it with the record.
func (c *hostedCopy) noteData(ctx context.Context) {
	c.stateMu.Lock()
	defer c.unlockState()
	if _, known := c.state[elementData]; !known {
		c.note(ctx, elementData, element{})
	}
}

// endedTime is how long who closed a session waits for Options.Ended.
const endedTime = 5 * time.Second

// callEnded calls Options.Ended for a session that this replica has just closed,
// while its data can be read.
func (r *Replica) callEnded(ctx context.Context, m *closing) {
	s := &Session{r: r, digest: digestOf(m.id), rec: m.rec, resumed: true, local: &localData{}}
	if c := m.copy; c != nil {
		s.resumed = c.resumed
		if c.local != nil {
			s.local = c.local
		}
	}
	over, cancel := context.WithCancelCause(context.Background())
	cancel(ErrClosed)
	s.ctx = over
	_, err := within(ctx, endedTime, r.owned.run, func(ctx context.Context) (struct{}, error) {
		r.opts.Ended(ctx, s)
		return struct{}{}, nil
	})
	if err != nil {
		r.log.Error("sessionshare: Options.Ended failed", "session", s.Digest(), "error", err)
	}
}
