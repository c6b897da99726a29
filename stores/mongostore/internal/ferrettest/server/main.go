// Command server runs FerretDB 1.24 on the address and the folder that it is
// given, and prints "ready" when it answers. The tests build it without the
// race detector, with which it is too slow to say anything about deadlines.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: server ADDRESS FOLDER")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, serve(os.Args[1], os.Args[2]))
	os.Exit(1)
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
				fmt.Fprintln(os.Stderr, "proxy:", err)
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
