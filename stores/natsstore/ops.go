package natsstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	errTTL   = errors.New("natsstore: ttl must be positive")
	errEmpty = errors.New("natsstore: value must not be empty")
)

// begin gives a context without a deadline one.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// failed names what failed. Once ctx has ended, the error says so.
func failed(ctx context.Context, op string, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("natsstore: %s: %w: %w", op, ended, err)
	}
	return fmt.Errorf("natsstore: %s: %w", op, err)
}

// await runs f, and leaves it behind when ctx ends. The client writes to its
// connection under a lock that every call needs, so when the server takes
// nothing more, not even a call that looks at its context gets to do so.
func await(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request sends msg, whose bytes must not change afterwards, and decodes the
// answer.
func (s *Store) request(ctx context.Context, msg *nats.Msg, answer any) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	var reply *nats.Msg // not read before await has seen the end of the call
	err := await(ctx, func() (err error) {
		reply, err = s.nc.RequestMsgWithContext(ctx, msg)
		return err
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Data, answer)
}

// subject is the subject of a key. A dot parts the tokens of a subject, and
// none may be empty, so a key becomes one token: its dots turn into slashes,
// which no key has.
func (s *Store) subject(key string) string {
	return s.subjects + strings.ReplaceAll(key, ".", "/")
}

// An entry is the last message of a key. value is nil if the key is missing;
// seq is then that of the trace it has left, or 0.
type entry struct {
	value []byte
	seq   uint64
}

// read asks the leader of the stream for the last message of key. Values are
// never empty, and the traces of deleted and expired keys are.
func (s *Store) read(ctx context.Context, key string) (entry, error) {
	ask, err := json.Marshal(map[string]string{"last_by_subj": s.subject(key)})
	if err != nil {
		return entry{}, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	if err := s.request(ctx, &nats.Msg{Subject: s.msgGet, Data: ask}, &answer); err != nil {
		return entry{}, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return entry{}, nil
	case answer.Error != nil:
		return entry{}, answer.Error
	case answer.Message == nil:
		return entry{}, errors.New("the server answered without a message")
	}
	e := entry{seq: answer.Message.Seq}
	if len(answer.Message.Data) > 0 {
		e.value = answer.Message.Data
	}
	return e, nil
}

// A header says under which condition, and for how long, a message is kept.
type header struct{ name, value string }

// lives is the header for a ttl: whole seconds, rounded up. The server would
// cut the rest off, and so expire keys early.
func lives(ttl time.Duration) header {
	return header{"Nats-TTL", strconv.FormatInt(int64((ttl-1)/time.Second)+1, 10) + "s"}
}

// ifLast is the header that makes the server refuse a message if the last one
// of its key is no longer seq.
func ifLast(seq uint64) header {
	return header{"Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(seq, 10)}
}

// errorCodeInFlight is JSErrCodeStreamWrongLastSequence without a number: in a
// cluster, while another message of the key is on its way.
const errorCodeInFlight jetstream.ErrorCode = 10164

// write sends a message for key and waits until the server has stored it. It
// reports false if an ifLast header did not hold.
func (s *Store) write(ctx context.Context, key string, value []byte, headers ...header) (stored bool, err error) {
	msg := nats.NewMsg(s.subject(key))
	msg.Data = bytes.Clone(value)
	for _, h := range headers {
		msg.Header.Set(h.name, h.value)
	}
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Stream   string              `json:"stream"`
		Sequence uint64              `json:"seq"`
	}
	if err := s.request(ctx, msg, &answer); err != nil {
		return false, err
	}
	switch {
	case answer.Error != nil && (answer.Error.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		answer.Error.ErrorCode == errorCodeInFlight):
		return false, nil
	case answer.Error != nil:
		return false, answer.Error
	case answer.Stream != s.stream || answer.Sequence == 0:
		return false, errors.New("somebody else than the bucket answered")
	}
	return true, nil
}

func checkPut(value []byte, ttl time.Duration) error {
	switch {
	case ttl <= 0:
		return errTTL
	case len(value) == 0:
		return errEmpty
	}
	return nil
}

// Get implements [sessionshare.SharedStore].
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	e, err := s.read(ctx, key)
	if err != nil {
		return nil, false, failed(ctx, "get", err)
	}
	return e.value, e.value != nil, nil
}

// Put implements [sessionshare.SharedStore].
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if err := checkPut(value, ttl); err != nil {
		return err
	}
	ctx, cancel := s.begin(ctx)
	defer cancel()
	if _, err := s.write(ctx, key, value, lives(ttl)); err != nil {
		return failed(ctx, "put", err)
	}
	return nil
}

// Delete implements [sessionshare.SharedStore]. It leaves a trace for watchers
// of the bucket, as a purge does, but with a life: without one it stays for ever.
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	_, err := s.write(ctx, key, nil, header{"KV-Operation", "PURGE"}, header{"Nats-Rollup", "sub"}, lives(markerTTL))
	if err != nil {
		return failed(ctx, "delete", err)
	}
	return nil
}

// Touch implements [sessionshare.Toucher]. The server cannot lengthen a life,
// so the value is written again on the condition that it is still the last.
func (s *Store) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		return false, errTTL
	}
	found, err := s.replace(ctx, key, ttl, func(value []byte) []byte { return value })
	if err != nil {
		return false, failed(ctx, "touch", err)
	}
	return found, nil
}

// CompareAndSwap implements [sessionshare.CompareAndSwapper].
func (s *Store) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if err := checkPut(new, ttl); err != nil {
		return false, err
	}
	swapped, err := s.replace(ctx, key, ttl, func(value []byte) []byte {
		if (value == nil) != (old == nil) || !bytes.Equal(value, old) {
			return nil
		}
		return new
	})
	if err != nil {
		return false, failed(ctx, "compare and swap", err)
	}
	return swapped, nil
}

// replace writes what next makes of the value of key, which is nil if the key
// is missing, and does so again if somebody else wrote meanwhile. If next
// returns nil, replace reports false and has changed nothing.
func (s *Store) replace(ctx context.Context, key string, ttl time.Duration, next func([]byte) []byte) (bool, error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	for {
		e, err := s.read(ctx, key)
		if err != nil {
			return false, err
		}
		value := next(e.value)
		if value == nil {
			return false, nil
		}
		if stored, err := s.write(ctx, key, value, lives(ttl), ifLast(e.seq)); stored || err != nil {
			return stored, err
		}
	}
}
