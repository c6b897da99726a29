package natsstore_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/sessionshare/sessionshare/stores/natsstore"
)

// The servers are processes of their own, so that they can be stopped and
// killed: this test binary, started again. childEnv holds the name, the port,
// the port and the routes of the cluster ("" for none), and the folder.
const childEnv = "NATSSTORE_TEST_SERVER"

func TestMain(m *testing.M) {
	if setup := os.Getenv(childEnv); setup != "" {
		if err := serve(strings.Split(setup, "|")); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

func serve(setup []string) error {
	port, err := strconv.Atoi(setup[1])
	if err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: setup[0], Host: "127.0.0.1", Port: port, StoreDir: setup[4],
		JetStream: true, NoLog: true, NoSigs: true,
	}
	if setup[2] != "" {
		if opts.Cluster.Port, err = strconv.Atoi(setup[2]); err != nil {
			return err
		}
		opts.Cluster.Host, opts.Cluster.Name = "127.0.0.1", "test"
		opts.Routes = server.RoutesFromStr(setup[3])
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return fmt.Errorf("not ready")
	}
	fmt.Println("ready")
	return nil
}

// A process is one nats-server.
type process struct {
	setup string
	url   string
	cmd   *exec.Cmd
}

func startServer(t *testing.T) *process {
	t.Helper()
	p := newProcess("single", freePort(t), "", "", t.TempDir())
	p.start(t)
	return p
}

func newProcess(name, port, clusterPort, routes, dir string) *process {
	return &process{
		setup: strings.Join([]string{name, port, clusterPort, routes, dir}, "|"),
		url:   "nats://127.0.0.1:" + port,
	}
}

// startCluster starts three servers that form a cluster.
func startCluster(t *testing.T) []*process {
	t.Helper()
	var ports, routes []string
	for range 3 {
		ports = append(ports, freePort(t))
		routes = append(routes, "nats-route://127.0.0.1:"+ports[len(ports)-1])
	}
	var all []*process
	for i, port := range ports {
		p := newProcess("n"+strconv.Itoa(i), freePort(t), port, strings.Join(routes, ","), t.TempDir())
		p.start(t)
		all = append(all, p)
	}
	return all
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := url.Parse("nats://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+p.setup)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.cmd
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the server: %q, %v", line, err)
	}
}

// kill ends the server as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// stall stops the server as SIGSTOP does.
func (p *process) stall() (resume func()) {
	p.cmd.Process.Signal(syscall.SIGSTOP)
	stopped(p.cmd.Process.Pid)
	return func() { p.cmd.Process.Signal(syscall.SIGCONT) }
}

// stopped waits until a process that was sent SIGSTOP has stopped: the signal
// takes a moment to arrive.
func stopped(pid int) {
	for range 1000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return // there is no /proc, or it has stopped
		}
		time.Sleep(time.Millisecond)
	}
}

// settings are those that the README names.
func settings() []nats.Option {
	return []nats.Option{
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(2 * time.Second),
	}
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(settings(), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// openStore returns a store on a connection of its own, with its bucket made.
func openStore(t *testing.T, url string, opts *natsstore.Options, more ...nats.Option) *natsstore.Store {
	t.Helper()
	s, err := natsstore.New(connect(t, url, more...), opts)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; {
		// A cluster that has just started has no leader yet, and nobody answers.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Migrate(ctx)
		cancel()
		if err == nil {
			return s
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
