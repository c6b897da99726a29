// Package mongostore keeps the sessions of a gateway in a MongoDB collection.
package mongostore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sessionshare/sessionshare"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Defaults of [Options]. The default of Options.ReadConcern is majority.
const (
	DefaultDatabase   = "sessionshare"
	DefaultCollection = "sessions"
	DefaultTimeout    = 2 * time.Second
)

// Options say how a [Store] works. The zero value, and nil, mean the defaults.
type Options struct {
	// Database and Collection name where the keys are. "" means
	// [DefaultDatabase] and [DefaultCollection].
	Database   string
	Collection string

	// ReadConcern is that of all reads; nil means majority. With snapshot, on a
	// replica set of MongoDB 5.0 or newer, the server promises that what GetMany
	// reads is of one moment, also when the query pauses. With linearizable it
	// promises for Get that a primary that was deposed unawares does not answer,
	// at the price of a write to the majority for each read.
	ReadConcern *readconcern.ReadConcern

	// Timeout bounds a call whose context has no deadline. Zero means
	// [DefaultTimeout].
	Timeout time.Duration
}

// A Store is a [sessionshare.SharedStore] in a collection. Its clock is the
// primary's (behind mongos: that of mongos), which it asks with every call.
type Store struct {
	admin   *mongo.Database
	keys    *mongo.Collection
	timeout time.Duration
}

var (
	_ sessionshare.SharedStore       = (*Store)(nil)
	_ sessionshare.Toucher           = (*Store)(nil)
	_ sessionshare.BatchGetter       = (*Store)(nil)
	_ sessionshare.PutDeleter        = (*Store)(nil)
	_ sessionshare.CompareAndSwapper = (*Store)(nil)
	_ sessionshare.Sweeper           = (*Store)(nil)
)

// A document is one key. The names are short because they are stored with each.
type document struct {
	Key     string      `bson:"_id"`
	Value   bson.Binary `bson:"v"`
	Expires time.Time   `bson:"exp"`
}

// New returns a store on client, which the caller owns and disconnects. It
// reads from the primary and writes to the majority, whatever the client's own
// settings are. Those of the client's settings that matter beyond that cannot
// be looked at: the README names them.
func New(client *mongo.Client, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case client == nil:
		return nil, errors.New("mongostore: the client is nil")
	case o.Timeout < 0:
		return nil, errors.New("mongostore: Options.Timeout is negative")
	case o.ReadConcern != nil && (o.ReadConcern.Level == "local" || o.ReadConcern.Level == "available"):
		return nil, errors.New("mongostore: Options.ReadConcern must be majority, snapshot or linearizable: " +
			"with " + o.ReadConcern.Level + " a read may see a write that is rolled back")
	}
	primary := readpref.Primary()
	keys := client.Database(cmp.Or(o.Database, DefaultDatabase)).Collection(cmp.Or(o.Collection, DefaultCollection),
		options.Collection().
			SetReadPreference(primary).
			SetReadConcern(cmp.Or(o.ReadConcern, readconcern.Majority())).
			SetWriteConcern(writeconcern.Majority()))
	return &Store{
		admin:   client.Database("admin", options.Database().SetReadPreference(primary)),
		keys:    keys,
		timeout: cmp.Or(o.Timeout, DefaultTimeout),
	}, nil
}

// notImplemented is the code by which servers that speak MongoDB's protocol
// refuse what only MongoDB has.
const notImplemented = 238

// Migrate creates the index by which MongoDB removes what has expired, about
// once a minute. It may run at every start, in several replicas at once. A
// server that has no such index is left to Sweep.
func (s *Store) Migrate(ctx context.Context) error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	_, err := s.keys.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "exp", Value: 1}},
		Options: options.Index().SetExpireAfterSeconds(0),
	})
	var refused mongo.ServerError
	if err != nil && !(errors.As(err, &refused) && refused.HasErrorCode(notImplemented)) {
		return failed(ctx, "migrate", err)
	}
	return nil
}

// sweepBatch is how many keys Sweep removes with one command.
const sweepBatch = 200

// Sweep implements [sessionshare.Sweeper]. It looks at the expiry again when it
// deletes: a key that was put meanwhile stays.
func (s *Store) Sweep(ctx context.Context) error {
	for {
		n, err := s.sweepSome(ctx)
		if err != nil || n < sweepBatch {
			return err
		}
	}
}

func (s *Store) sweepSome(ctx context.Context) (n int, err error) {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	now, err := s.now(ctx)
	if err != nil {
		return 0, failed(ctx, "sweep", err)
	}
	expired := bson.E{Key: "exp", Value: bson.D{{Key: "$lte", Value: now}}}
	cursor, err := s.keys.Find(ctx, bson.D{expired},
		options.Find().SetLimit(sweepBatch).SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return 0, failed(ctx, "sweep", err)
	}
	var found []document
	if err := cursor.All(ctx, &found); err != nil || len(found) == 0 {
		if err != nil {
			err = failed(ctx, "sweep", err)
		}
		return 0, err
	}
	keys := make([]string, len(found))
	for i, d := range found {
		keys[i] = d.Key
	}
	if _, err := s.keys.DeleteMany(ctx, bson.D{in(keys), expired}); err != nil {
		return 0, failed(ctx, "sweep", err)
	}
	return len(found), nil
}
