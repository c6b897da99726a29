package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// serve serves on l until ctx is done (SIGTERM), and then leaves in such a way
// that no client notices: every session goes on at another replica.
func (g *gateway) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           g.mux,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
		// There is no WriteTimeout: streams stay open.
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	g.ready.Store(true)
	g.log.Info("ready", "address", l.Addr().String())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return g.leave(server)
}

// leave is the recipe for a deploy.
func (g *gateway) leave(server *http.Server) error {
	g.log.Info("leaving", "sessions", g.share.Stats().Hosted)
	// 1. The load balancer is told to send nothing more.
	g.ready.Store(false)
	// 2. Streams end, and clients open them elsewhere. Calls go on, for they still
	// come until the load balancer has asked.
	g.share.Drain()
	time.Sleep(g.noticed)
	// 3. No new connections; what runs is finished.
	ctx, cancel := context.WithTimeout(context.Background(), g.grace)
	defer cancel()
	err := server.Shutdown(ctx)
	// 4. The copies of sessions end here, and with them the upstream connections.
	// The sessions themselves are in the store. This comes last: from here on,
	// calls would be refused.
	err = errors.Join(err, g.share.Shutdown(ctx), server.Close())
	g.log.Info("left", "error", err)
	return err
}
