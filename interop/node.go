package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// TypeScript returns the client of the TypeScript SDK, version "v1" or "v2". It is
// ts/driver.mjs, run by node, which is told what to do line by line.
func TypeScript(version string) Maker {
	return Maker{Name: "typescript-" + version, New: func() (Client, error) { return startNode(version) }}
}

// A nodeClient is a node process. A line to it is a command:
//
//	{"id": 7, "op": "call", "arg": {...}}
//
// and one from it the outcome of a command, or an event:
//
//	{"id": 7, "value": ...} {"id": 7, "error": "..."} {"event": {"kind": "log", "text": "..."}}
type nodeClient struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	exited  chan struct{}
	seen    Seen
	session string

	mu      sync.Mutex // guards all below, and writing to stdin
	last    int
	waiting map[int]chan outcome
}

type outcome struct {
	ID    int             `json:"id"`
	Value json.RawMessage `json:"value"`
	Error string          `json:"error"`
	Event *Event          `json:"event"`
}

func startNode(version string) (*nodeClient, error) {
	c := &nodeClient{exited: make(chan struct{}), waiting: map[int]chan outcome{}}
	c.cmd = exec.Command("node", filepath.Join("ts", "driver.mjs"), version)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.read(stdout)
	return c, nil
}

// read takes lines until the process ends.
func (c *nodeClient) read(stdout io.Reader) {
	defer close(c.exited)
	in := bufio.NewReader(stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var o outcome
		if err := json.Unmarshal(line, &o); err != nil {
			continue
		}
		if o.Event != nil {
			c.seen.Add(o.Event.Kind, o.Event.Text)
			continue
		}
		c.mu.Lock()
		wait := c.waiting[o.ID]
		delete(c.waiting, o.ID)
		c.mu.Unlock()
		if wait != nil {
			wait <- o
		}
	}
	_ = c.cmd.Wait()
}

// do has a command done. When ctx ends the command is aborted, and what becomes of
// it awaited.
func (c *nodeClient) do(ctx context.Context, op string, arg, value any) error {
	wait := make(chan outcome, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[id] = wait
	err := c.write(map[string]any{"id": id, "op": op, "arg": arg})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	done := ctx.Done()
	for {
		select {
		case o := <-wait:
			if o.Error != "" {
				return errors.New(o.Error)
			}
			if value == nil {
				return nil
			}
			return json.Unmarshal(o.Value, value)
		case <-c.exited:
			return errors.New("node has ended")
		case <-done:
			done = nil
			c.mu.Lock()
			err := c.write(map[string]any{"op": "abort", "arg": id})
			c.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

// write sends a line. c.mu is held.
func (c *nodeClient) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.stdin.Write(append(line, '\n'))
	return err
}

func (c *nodeClient) text(ctx context.Context, op string, arg any) (s string, err error) {
	err = c.do(ctx, op, arg, &s)
	return s, err
}

func (c *nodeClient) Seen() *Seen { return &c.seen }

func (c *nodeClient) SessionID() string { return c.session }

func (c *nodeClient) Connect(ctx context.Context, url string) (err error) {
	c.session, err = c.text(ctx, "connect", url)
	return err
}

func (c *nodeClient) List(ctx context.Context) (l Lists, err error) {
	err = c.do(ctx, "list", nil, &l)
	return l, err
}

func (c *nodeClient) Read(ctx context.Context, uri string) (string, error) {
	return c.text(ctx, "read", uri)
}

func (c *nodeClient) Prompt(ctx context.Context, who string) (string, error) {
	return c.text(ctx, "prompt", who)
}

func (c *nodeClient) Complete(ctx context.Context, prefix string) (string, error) {
	return c.text(ctx, "complete", prefix)
}

func (c *nodeClient) Call(ctx context.Context, tool string, a Args) (string, error) {
	return c.text(ctx, "call", map[string]any{"name": tool, "arguments": a})
}

func (c *nodeClient) Ping(ctx context.Context) error { return c.do(ctx, "ping", nil, nil) }

func (c *nodeClient) SetLevel(ctx context.Context, level string) error {
	return c.do(ctx, "setLevel", level, nil)
}

func (c *nodeClient) Subscribe(ctx context.Context, uri string) error {
	return c.do(ctx, "subscribe", uri, nil)
}

func (c *nodeClient) Unsubscribe(ctx context.Context, uri string) error {
	return c.do(ctx, "unsubscribe", uri, nil)
}

func (c *nodeClient) AddRoot(ctx context.Context, uri string) error {
	return c.do(ctx, "addRoot", uri, nil)
}

func (c *nodeClient) Terminate(ctx context.Context) error { return c.do(ctx, "terminate", nil, nil) }

// Close lets the process end by itself, for a moment.
func (c *nodeClient) Close() {
	_ = c.stdin.Close()
	select {
	case <-c.exited:
	case <-time.After(2 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
}

// NodeMissing says what there is to do before TypeScript can be run; "" if
// nothing is.
func NodeMissing() string {
	if _, err := exec.LookPath("node"); err != nil {
		return "node (20 or later) is not installed"
	}
	if _, err := os.Stat(filepath.Join("ts", "node_modules")); err != nil {
		return "the TypeScript SDK is not there: run npm ci in interop/ts"
	}
	return ""
}

// InstallNode runs npm ci.
func InstallNode(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = "ts"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
}
