// Command gateway is an MCP gateway as its author would write it: virtual
// endpoints /mcp/{name} that offer the tools of upstream servers, for users with
// bearer tokens, on any number of replicas behind any load balancer.
//
//	go run ./examples/gateway
//
// starts one replica with three upstream servers of its own and prints what to do
// with it. With -upstream NAME=URL (more than once), it offers yours.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sessionshare/sessionshare"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	cfg := config{upstreams: map[string]string{}, stateful: map[string]bool{}, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "where to listen")
	dir := flags.String("registry", filepath.Join(os.TempDir(), "sessionshare-gateway"), "folder of endpoints and tokens")
	flags.DurationVar(&cfg.noticed, "noticed", 5*time.Second, "until the load balancer has noticed that readiness fails")
	flags.DurationVar(&cfg.grace, "grace", 25*time.Second, "for running calls when told to end")
	flags.Func("upstream", "`NAME=URL` of an upstream MCP server", func(s string) error {
		name, url, ok := strings.Cut(s, "=")
		if !ok || !validName.MatchString(name) {
			return fmt.Errorf("%q is not NAME=URL", s)
		}
		cfg.upstreams[name] = url
		return nil
	})
	flags.Func("stateful", "`NAME` of an upstream that keeps something for each session, as a browser does", func(s string) error {
		cfg.stateful[s] = true
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Replicas in several processes need a store that all of them reach, such as
	// redisstore.New(client, nil). This is the line.
	cfg.store = sessionshare.NewMemoryStore()
	return start(ctx, cfg, *listen, *dir)
}

func start(ctx context.Context, cfg config, listen, dir string) (err error) {
	if cfg.registry, err = openRegistry(dir); err != nil {
		return err
	}
	if len(cfg.upstreams) == 0 {
		demo, err := startDemo()
		if err != nil {
			return err
		}
		defer demo.close()
		cfg.upstreams, cfg.stateful = demo.urls, demo.stateful
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	cfg.name = l.Addr().String()
	g, err := newGateway(cfg)
	if err != nil {
		return err
	}
	if err := greet(cfg, "http://"+cfg.name); err != nil {
		return err
	}
	return g.serve(ctx, l)
}

// greet gives whoever starts the first replica a token that begins everything.
func greet(cfg config, url string) error {
	fresh, err := cfg.registry.fresh()
	if err != nil || !fresh {
		return err
	}
	admin, _, err := cfg.registry.issue("root", "", []string{adminScope}, 24*time.Hour)
	if err != nil {
		return err
	}
	var names []string
	for name := range cfg.upstreams {
		names = append(names, `"`+name+`"`)
	}
	fmt.Printf(`The admin token, shown this once: %[2]s

  curl -X PUT %[1]s/admin/endpoints/tools -H 'Authorization: Bearer %[2]s' -d '{"upstreams":[%[3]s]}'
  curl %[1]s/admin/tokens -H 'Authorization: Bearer %[2]s' -d '{"user":"alice","seconds":3600}'

The token in that answer is what an MCP client needs for %[1]s/mcp/tools
`, url, admin, strings.Join(names, ","))
	return nil
}
