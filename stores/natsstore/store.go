// Package natsstore keeps the sessions of a gateway in a key-value bucket of
// NATS JetStream, and carries hints between its replicas over core NATS.
//
// It needs nats-server 2.11 or newer: older ones accept a key with a life and
// keep it for ever.
package natsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sessionshare/sessionshare"
)

// Defaults of [Options].
const (
	DefaultBucket  = "sessionshare"
	DefaultTimeout = 2 * time.Second
)

// Options say how a [Store] works. The zero value, and nil, mean the defaults.
type Options struct {
	// Bucket is the name of the bucket, of letters, digits, - and _. Hints go to
	// subjects below "sessionshare." and this name. "" means [DefaultBucket].
	Bucket string

	// Replicas is how many servers of a cluster keep the bucket when Migrate
	// creates it. Zero means one, which is right for a single server only.
	Replicas int

	// Domain is the JetStream domain, for leaf nodes. "" means that of the
	// connection.
	Domain string

	// Timeout bounds a call whose context has no deadline. Zero means
	// [DefaultTimeout].
	Timeout time.Duration
}

// A Store is a [sessionshare.SharedStore] in a bucket. Its clock is that of the
// server that leads the bucket's stream.
//
// It is no BatchGetter, since several gets are not as of one moment, and the
// batched one may be answered by a copy that lags. It is no PutDeleter, since of
// two pipelined messages the first one can be refused and the second one taken.
// It is no Sweeper, since the server removes what has expired.
type Store struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	opts     Options
	stream   string // of the bucket
	subjects string // what a key's subject begins with
	msgGet   string // the subject of the API that reads from the leader
	hints    string // what a channel's subject begins with
	checked  atomic.Bool

	pingEvery time.Duration // shorter in tests
}

var (
	_ sessionshare.SharedStore       = (*Store)(nil)
	_ sessionshare.Toucher           = (*Store)(nil)
	_ sessionshare.CompareAndSwapper = (*Store)(nil)
	_ sessionshare.PubSub            = (*Store)(nil)
)

// New returns a store on nc, which the caller owns and closes. It asks no
// server anything, so it works while none can be reached; the first call of the
// store checks the bucket, which must have been made: see [Store.Migrate].
//
// New refuses a connection with whose settings the store could not keep its
// promises:
//
//	nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1))
func New(nc *nats.Conn, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Bucket = cmp.Or(o.Bucket, DefaultBucket)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	switch {
	case nc == nil:
		return nil, errors.New("natsstore: the connection is nil")
	case !bucketName.MatchString(o.Bucket):
		return nil, errors.New("natsstore: Options.Bucket must be of letters, digits, - and _")
	case o.Timeout < 0 || o.Replicas < 0:
		return nil, errors.New("natsstore: Options.Timeout or Options.Replicas is negative")
	case nc.Opts.ReconnectBufSize != -1:
		return nil, errors.New("natsstore: the connection keeps writes while it is down and sends them later, " +
			"when their callers have given up: add nats.ReconnectBufSize(-1) to nats.Connect")
	case !nc.Opts.AllowReconnect || nc.Opts.MaxReconnect >= 0:
		return nil, errors.New("natsstore: the connection gives up for good when the server is away for long: " +
			"add nats.MaxReconnects(-1) to nats.Connect")
	}
	// "" if it has never been connected.
	if v := nc.ConnectedServerVersion(); v != "" && !atLeast211(v) {
		return nil, fmt.Errorf("natsstore: the server is %s, which keeps expired keys for ever: use 2.11 or newer", v)
	}
	s := &Store{
		nc: nc, opts: o, pingEvery: pingInterval,
		stream: "KV_" + o.Bucket, subjects: "$KV." + o.Bucket + ".", hints: "sessionshare." + o.Bucket + ".",
	}
	var err error
	if o.Domain == "" {
		s.js, err = jetstream.New(nc)
	} else {
		s.js, err = jetstream.NewWithDomain(nc, o.Domain)
	}
	if err != nil {
		return nil, fmt.Errorf("natsstore: %w", err)
	}
	s.msgGet = "$JS.API.STREAM.MSG.GET." + s.stream
	if o.Domain != "" {
		s.msgGet = "$JS." + o.Domain + ".API.STREAM.MSG.GET." + s.stream
	}
	return s, nil
}

var bucketName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// atLeast211 says whether a server's version is 2.11 or newer. What is no
// version is a build of the user's own, and taken.
func atLeast211(version string) bool {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA != nil || errB != nil || a > 2 || a == 2 && b >= 11
}

// Migrate creates the bucket, or gives one that is there the settings that the
// store needs. It may run at every start, in several replicas at once. It keeps
// what else somebody has set, such as limits and placement.
func (s *Store) Migrate(ctx context.Context) error {
	ctx, cancel := s.begin(ctx)
	defer cancel()
	err := s.migrate(ctx)
	if err != nil {
		return failed(ctx, "migrate", err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	// The server says nothing when it does not know a setting: ask first.
	account, err := s.js.AccountInfo(ctx)
	if err != nil {
		return err
	}
	if account.API.Level < 1 {
		return errors.New("the server knows no life of a key: use 2.11 or newer")
	}
	stream, err := s.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = s.js.CreateStream(ctx, s.config())
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		// Another replica was faster.
		stream, err = s.js.Stream(ctx, s.stream)
	}
	if err != nil {
		return err
	}
	have := stream.CachedInfo().Config
	want := have
	want.AllowMsgTTL, want.AllowDirect = true, false
	want.SubjectDeleteMarkerTTL = cmp.Or(have.SubjectDeleteMarkerTTL, markerTTL)
	want.MaxMsgsPerSubject, want.MaxAge, want.Discard = 1, 0, jetstream.DiscardNew
	if usable(have) == nil && !have.AllowDirect && have.SubjectDeleteMarkerTTL > 0 {
		return nil
	}
	_, err = s.js.UpdateStream(ctx, want)
	return err
}

// markerTTL is how long the server keeps the trace of a key that is gone. The
// store needs none; watchers of the bucket do.
const markerTTL = time.Second

// config is that of a key-value bucket, so that the tools for buckets work, but
// for AllowDirect: with it the readers of a bucket may be answered by a server
// that has not yet seen the latest write. The store itself never reads so.
func (s *Store) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                   s.stream,
		Description:            "sessionshare: sessions of a gateway",
		Subjects:               []string{s.subjects + ">"},
		Storage:                jetstream.FileStorage,
		Replicas:               max(1, s.opts.Replicas),
		MaxMsgsPerSubject:      1,
		Discard:                jetstream.DiscardNew,
		AllowRollup:            true,
		DenyDelete:             true,
		AllowMsgTTL:            true,
		SubjectDeleteMarkerTTL: markerTTL,
	}
}

// usable says what about a bucket would break the store's promises.
func usable(c jetstream.StreamConfig) error {
	switch {
	case !c.AllowMsgTTL:
		return errors.New("keys have no life of their own in the bucket: call Migrate")
	case c.MaxMsgsPerSubject != 1:
		return errors.New("the bucket keeps older values, which come back when newer ones expire: call Migrate")
	case c.MaxAge != 0 || c.Discard != jetstream.DiscardNew:
		return errors.New("the bucket drops keys that are alive: call Migrate")
	case c.Mirror != nil:
		return errors.New("the bucket is a mirror, which lags: name the bucket itself")
	}
	return nil
}

// check looks at the bucket once, before the first call that uses it: a server
// takes a key for a bucket without lives and keeps it for ever.
func (s *Store) check(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	err := await(ctx, func() error {
		stream, err := s.js.Stream(ctx, s.stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("there is no bucket: call Migrate: %w", err)
		}
		if err != nil {
			return err
		}
		return usable(stream.CachedInfo().Config)
	})
	s.checked.Store(err == nil)
	return err
}
