package mongostore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var (
	errTTL   = errors.New("mongostore: ttl must be positive")
	errEmpty = errors.New("mongostore: value must not be empty")
)

// begin gives a context without a deadline one.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// failed names what failed. Once ctx has ended, the error says so.
func failed(ctx context.Context, op string, err error) error {
	var server mongo.ServerError
	if errors.As(err, &server) {
		err = discreet{server}
	}
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("mongostore: %s: %w: %w", op, ended, err)
	}
	return fmt.Errorf("mongostore: %s: %w", op, err)
}

// discreet is an error of the server by its codes only. The server's own text
// names keys ("E11000 duplicate key error ... dup key: ...").
type discreet struct{ mongo.ServerError }

func (e discreet) Error() string {
	text := fmt.Sprint("the server refused with codes ", e.ErrorCodes())
	var command mongo.CommandError
	if errors.As(e.ServerError, &command) && command.Name != "" {
		text += " (" + command.Name + ")"
	}
	return text
}

func (e discreet) Unwrap() error { return e.ServerError }

// await runs f, and leaves it behind when ctx ends. The driver obeys contexts,
// but with a thousand callers its tidying up takes longer than they may wait.
// f must touch nothing of the caller's afterwards.
func await[T any](ctx context.Context, f func() (T, error)) (value T, err error) {
	if err := ctx.Err(); err != nil {
		return value, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// now asks the primary for its clock. It is read within the call, so what the
// store makes of it is off by one round trip at most, and by no replica's clock.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
	}
	err := s.admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	if err == nil && hello.LocalTime.IsZero() {
		err = errors.New("the server does not tell its time")
	}
	return hello.LocalTime, err
}

// until is when a key expires that is given ttl now. Both clock and storage cut
// to a whole ms, so one is added: a key never expires early.
func until(now time.Time, ttl time.Duration) time.Time {
	return now.Add((ttl-1)/time.Millisecond*time.Millisecond + 2*time.Millisecond)
}

func in(keys []string) bson.E {
	if len(keys) == 1 {
		return bson.E{Key: "_id", Value: keys[0]}
	}
	return bson.E{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}
}

func alive(now time.Time) bson.E {
	return bson.E{Key: "exp", Value: bson.D{{Key: "$gt", Value: now}}}
}

func set(value []byte, expires time.Time) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: bson.Binary{Data: value}}, {Key: "exp", Value: expires}}}}
}

// Get implements [sessionshare.SharedStore].
func (s *Store) Get(ctx context.Context, key string) ([]byte, bool, error) {
	values, err := s.GetMany(ctx, []string{key})
	if err != nil {
		return nil, false, err
	}
	return values[0], values[0] != nil, nil
}

// GetMany implements [sessionshare.BatchGetter].
func (s *Store) GetMany(ctx context.Context, keys []string) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, cancel := s.begin(ctx)
	defer cancel()
	keys = slices.Clone(keys)
	found, err := await(ctx, func() (map[string][]byte, error) { return s.read(ctx, keys) })
	if err != nil {
		return nil, failed(ctx, "get", err)
	}
	values := make([][]byte, len(keys))
	for i, key := range keys {
		values[i] = bytes.Clone(found[key]) // a key may be named twice
	}
	return values, nil
}

// read reads the keys that are alive with one query, and the clock beside it.
func (s *Store) read(ctx context.Context, keys []string) (map[string][]byte, error) {
	var now time.Time
	asked := make(chan error, 1)
	go func() {
		var err error
		now, err = s.now(ctx)
		asked <- err
	}()
	var found []document
	cursor, err := s.keys.Find(ctx, bson.D{in(keys)})
	if err == nil {
		err = cursor.All(ctx, &found)
	}
	if err = cmp.Or(err, <-asked); err != nil {
		return nil, err
	}
	values := make(map[string][]byte, len(found))
	for _, d := range found {
		if d.Expires.After(now) {
			values[d.Key] = d.Value.Data
		}
	}
	return values, nil
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

// change asks for the time, gives it to f, and says what failed. Two upserts of
// one key can meet: the loser is told that the key exists, and tries again.
func (s *Store) change(ctx context.Context, op string, f func(ctx context.Context, now time.Time) (bool, error)) (bool, error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	done, err := await(ctx, func() (bool, error) {
		for {
			now, err := s.now(ctx)
			if err != nil {
				return false, err
			}
			done, err := f(ctx, now)
			if !mongo.IsDuplicateKeyError(err) || ctx.Err() != nil {
				return done, err
			}
		}
	})
	if err != nil {
		return false, failed(ctx, op, err)
	}
	return done, nil
}

// matched says whether an update found the document that it was for.
func matched(result *mongo.UpdateResult, err error) (bool, error) {
	return err == nil && result.MatchedCount == 1, err
}

// Put implements [sessionshare.SharedStore].
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if err := checkPut(value, ttl); err != nil {
		return err
	}
	value = bytes.Clone(value)
	_, err := s.change(ctx, "put", func(ctx context.Context, now time.Time) (bool, error) {
		return matched(s.keys.UpdateOne(ctx, bson.D{in([]string{key})}, set(value, until(now, ttl)), options.UpdateOne().SetUpsert(true)))
	})
	return err
}

// Delete implements [sessionshare.SharedStore].
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	_, err := await(ctx, func() (*mongo.DeleteResult, error) { return s.keys.DeleteOne(ctx, bson.D{in([]string{key})}) })
	if err != nil {
		return failed(ctx, "delete", err)
	}
	return nil
}

// PutDelete implements [sessionshare.PutDeleter]: one ordered update command
// with two statements, of which the server runs the second only if the first
// one succeeded. A delete would be a command of its own, so del is made expired
// and empty instead; the index or Sweep removes it.
func (s *Store) PutDelete(ctx context.Context, put string, value []byte, ttl time.Duration, del string) error {
	if err := checkPut(value, ttl); err != nil {
		return err
	}
	value = bytes.Clone(value)
	_, err := s.change(ctx, "put and delete", func(ctx context.Context, now time.Time) (bool, error) {
		_, err := s.keys.BulkWrite(ctx, []mongo.WriteModel{
			mongo.NewUpdateOneModel().SetFilter(bson.D{in([]string{put})}).SetUpdate(set(value, until(now, ttl))).SetUpsert(true),
			mongo.NewUpdateOneModel().SetFilter(bson.D{in([]string{del})}).SetUpdate(set([]byte{}, time.UnixMilli(0))),
		}, options.BulkWrite().SetOrdered(true))
		return err == nil, err
	})
	return err
}

// Touch implements [sessionshare.Toucher]. It never shortens a life.
func (s *Store) Touch(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		return false, errTTL
	}
	return s.change(ctx, "touch", func(ctx context.Context, now time.Time) (bool, error) {
		return matched(s.keys.UpdateOne(ctx, bson.D{in([]string{key}), alive(now)},
			bson.D{{Key: "$max", Value: bson.D{{Key: "exp", Value: until(now, ttl)}}}}))
	})
}

// CompareAndSwap implements [sessionshare.CompareAndSwapper].
func (s *Store) CompareAndSwap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (bool, error) {
	if err := checkPut(new, ttl); err != nil {
		return false, err
	}
	old, new = bytes.Clone(old), bytes.Clone(new)
	return s.change(ctx, "compare and swap", func(ctx context.Context, now time.Time) (bool, error) {
		if old == nil {
			return s.create(ctx, key, set(new, until(now, ttl)), now)
		}
		return matched(s.keys.UpdateOne(ctx, bson.D{in([]string{key}), {Key: "v", Value: bson.Binary{Data: old}}, alive(now)},
			set(new, until(now, ttl))))
	})
}

// create stores a key that is missing or expired. If it is alive the filter
// does not match, so the server tries to insert it, and finds that it is there.
func (s *Store) create(ctx context.Context, key string, update bson.D, now time.Time) (bool, error) {
	expired := bson.E{Key: "exp", Value: bson.D{{Key: "$lte", Value: now}}}
	_, err := s.keys.UpdateOne(ctx, bson.D{in([]string{key}), expired}, update, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) {
		return false, nil
	}
	return err == nil, err
}
