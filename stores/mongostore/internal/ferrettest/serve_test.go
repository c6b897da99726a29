package ferrettest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"
)

// The server is a process of its own, so that it can be stopped and killed:
// this test binary, started again. childEnv holds its address and its folder.
const childEnv = "MONGOSTORE_TEST_SERVER"

func TestMain(m *testing.M) {
	if setup := os.Getenv(childEnv); setup != "" {
		address, dir, _ := strings.Cut(setup, "|")
		fmt.Println("failed:", serve(address, dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serve runs FerretDB behind a proxy that listens on address.
func serve(address, dir string) error {
	front, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	db, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: "127.0.0.1:0"},
		Logger:    slog.New(slog.DiscardHandler),
		Handler:   "sqlite",
		SQLiteURL: "file:" + dir + "/",
	})
	if err != nil {
		return err
	}
	go db.Run(context.Background())
	back := strings.Trim(strings.TrimPrefix(db.MongoDBURI(), "mongodb://"), "/")
	fmt.Println("ready")
	return proxy{back: back}.run(front)
}

// A proxy forwards one message at a time over all connections: FerretDB 1.24
// loses updates when several clients write at once, and MongoDB does not. So
// the tests of concurrency prove the adapter, given a server that is atomic.
type proxy struct {
	back string
	turn *sync.Mutex // held from a request to its answer
}

func (p proxy) run(front net.Listener) error {
	p.turn = new(sync.Mutex)
	for {
		client, err := front.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			if err := p.forward(client); err != nil && !errors.Is(err, io.EOF) {
				fmt.Println("proxy:", err)
			}
		}()
	}
}

func (p proxy) forward(client net.Conn) error {
	server, err := net.Dial("tcp", p.back)
	if err != nil {
		return err
	}
	defer server.Close()
	for {
		request, err := readMessage(client)
		if err != nil {
			return err
		}
		answer, err := p.ask(server, request)
		if err != nil {
			return err
		}
		if _, err := client.Write(answer); err != nil {
			return err
		}
	}
}

func (p proxy) ask(server net.Conn, request []byte) ([]byte, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	if _, err := server.Write(request); err != nil {
		return nil, err
	}
	const opMsg, moreToCome = 2013, 2
	if binary.LittleEndian.Uint32(request[12:]) == opMsg && binary.LittleEndian.Uint32(request[16:])&moreToCome != 0 {
		return nil, nil
	}
	return readMessage(server)
}

// readMessage reads one message of the wire protocol: its first four bytes are
// its length.
func readMessage(r io.Reader) ([]byte, error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head)
	if n < 20 || n > 48<<20 {
		return nil, errors.New("a message of an impossible length")
	}
	msg := append(head, make([]byte, n-16)...)
	_, err := io.ReadFull(r, msg[16:])
	return msg, err
}

// A process is one FerretDB.
type process struct {
	address, dir string
	cmd          *exec.Cmd
}

func startServer(t *testing.T) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{address: l.Addr().String(), dir: t.TempDir()}
	l.Close()
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+p.address+"|"+p.dir)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd, lines := p.cmd, bufio.NewReader(out)
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the server: %q, %v", line, err)
	}
	go io.Copy(io.Discard, lines)
}

func (p *process) url() string { return "mongodb://" + p.address + "/" }

// kill ends the server as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// stall stops the server as SIGSTOP does.
func (p *process) stall() (resume func()) {
	p.cmd.Process.Signal(syscall.SIGSTOP)
	return func() { p.cmd.Process.Signal(syscall.SIGCONT) }
}

func untilWorks(t *testing.T, f func() error) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
	}
}
