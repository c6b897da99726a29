package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// pingInterval is how often a subscription on which nothing arrives asks the
// server whether it is still there, and how long it waits for the answer.
const pingInterval = 10 * time.Second

// listenName returns the name by which a channel is listened to. Names in
// PostgreSQL are short, and all tables of a database share them.
func (s *Store) listenName(channel string) string {
	sum := sha256.Sum256([]byte(s.opts.Table + "\x00" + channel))
	return "sessionshare_" + hex.EncodeToString(sum[:20])
}

// Publish implements [sessionshare.PubSub]. The message travels as base64, for
// a payload is text without NUL, and 4 KiB stay below its limit of 7,999 bytes.
func (s *Store) Publish(ctx context.Context, channel string, msg []byte) error {
	_, err := s.exec(ctx, "Publish", "SELECT pg_notify($1, $2)", s.listenName(channel), base64.StdEncoding.EncodeToString(msg))
	return err
}

// Subscribe implements [sessionshare.PubSub], on a connection of its own, which
// is none of the pool's. It cannot work through a proxy that shares connections
// between statements, such as PgBouncer in transaction mode.
func (s *Store) Subscribe(ctx context.Context, channels []string, deliver func(channel string, msg []byte)) error {
	names := make(map[string]string, len(channels))
	var listen strings.Builder
	for _, channel := range channels {
		name := s.listenName(channel)
		names[name] = channel
		listen.WriteString("LISTEN " + name + ";")
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return fail(ctx, "Subscribe", err)
	}
	defer hangUp(conn)
	starting, cancel := s.bound(ctx)
	defer cancel()
	// Without arguments, several statements go at once.
	if _, err := conn.Exec(starting, listen.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fail(ctx, "Subscribe", err)
	}
	for {
		name, payload, err := s.next(ctx, conn)
		if err != nil {
			return fail(ctx, "Subscribe", err)
		}
		msg, err := base64.StdEncoding.DecodeString(payload)
		if channel, ok := names[name]; ok && err == nil { // else somebody else's
			deliver(channel, msg)
		}
	}
}

// connect opens a connection like those of the pool.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	config := s.pool.Config()
	if config.BeforeConnect != nil { // it may fetch a password
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// next waits for a notification. When none comes for a while it asks the server
// for a sign of life: one that vanished without a word would otherwise be waited
// for for ever.
func (s *Store) next(ctx context.Context, conn *pgx.Conn) (name, payload string, err error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, s.pingEvery)
		n, err := conn.WaitForNotification(waiting)
		quiet := waiting.Err() != nil
		cancel()
		if err == nil {
			return n.Channel, n.Payload, nil
		}
		if ctx.Err() != nil || !quiet || conn.IsClosed() {
			return "", "", err
		}
		asking, cancel := context.WithTimeout(ctx, s.pingEvery)
		err = conn.Ping(asking)
		cancel()
		if err != nil {
			return "", "", fmt.Errorf("%w: %w", errSilent, err)
		}
	}
}

var errSilent = errors.New("the server does not answer")

// hangUp closes a connection and does not wait long for the server's leave.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
}
