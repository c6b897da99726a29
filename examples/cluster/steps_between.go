package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The steps in which one replica has something for another.

// askAlice calls a tool that asks. The proxy sends her answer to the next replica,
// where nobody has asked; if a request of her stream comes between, it may come to
// the right one by chance, and the step is played again.
func askAlice(ctx context.Context, w *world, n *narrator) error {
	for range 5 {
		before, began := len(w.wire.trail()), time.Now()
		got, err := w.call(ctx, "confirm")
		if err != nil {
			return fmt.Errorf("expected an answer, got: %w", err)
		}
		if got.Answer != "accept" {
			return fmt.Errorf("expected the tool to be told accept, got %q", got.Answer)
		}
		took := time.Since(began)
		at, err := w.wire.awaitSince(ctx, before, "answer")
		if err != nil {
			return err
		}
		n.say("replica %s asks, Alice answers at replica %s, %d ms in all", got.Replica, at, took.Milliseconds())
		if at != got.Replica {
			n.good("the answer found the tool that had asked")
			return nil
		}
	}
	return errors.New("expected an answer that arrives at another replica, got none in five questions")
}

// cancelCall cancels a long call. All that the replica with the call gets of it
// comes from another one: a connection that breaks is no cancellation in MCP.
func cancelCall(ctx context.Context, w *world, n *narrator) error {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	call, cancel := context.WithCancel(ctx)
	returned, before := make(chan error, 1), len(w.wire.trail())
	go func() {
		_, err := w.client.CallTool(call, &mcp.CallToolParams{Name: "wait"})
		returned <- err
	}()
	begun, err := w.next(ctx, "begun")
	if err != nil {
		cancel()
		return err
	}
	n.say("the call runs on replica %s", begun.replica)
	cancel()
	began := time.Now()
	ended, err := w.next(ctx, "cancelled")
	if err != nil {
		return err
	}
	if ended.replica != begun.replica {
		return fmt.Errorf("expected the call on replica %s to end, got one on %s", begun.replica, ended.replica)
	}
	if err := <-returned; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("expected the client to be told that it has cancelled, got: %v", err)
	}
	took := time.Since(began)
	at, err := w.wire.awaitSince(ctx, before, "notifications/cancelled")
	if err != nil {
		return err
	}
	n.good("cancelled at replica %s, stopped on replica %s %d ms later", at, ended.replica, took.Milliseconds())
	return nil
}

// next waits for what happens next to the tool wait.
func (w *world) next(ctx context.Context, want string) (event, error) {
	select {
	case got := <-w.waiting:
		if got.what != want {
			return got, fmt.Errorf("expected the call to be %s, but it was %s", want, got.what)
		}
		return got, nil
	case <-ctx.Done():
		return event{}, fmt.Errorf("expected the call to be %s, and it was not", want)
	}
}

// changeTools adds a tool on each replica, as a new configuration does, beginning
// with one that does not hold the client's stream.
func changeTools(ctx context.Context, w *world, n *narrator) error {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	holder, err := w.wire.holder(ctx)
	if err != nil {
		return err
	}
	first := (index(holder) + 1) % replicas
	n.say("the client's stream is at replica %s; the tool is added on replica %s first", holder, name(first))
	w.addTool(first)
	began := time.Now()
	select {
	case <-w.changes:
		n.say("told after %d ms", time.Since(began).Milliseconds())
	case <-ctx.Done():
		return fmt.Errorf("expected the client to be told of the change on replica %s, and it was not", name(first))
	}
	for i := range replicas {
		if i != first {
			w.addTool(i)
		}
	}
	for range replicas {
		found := false
		for tool, err := range w.client.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			found = found || tool.Name == "news"
		}
		if !found {
			return errors.New("expected the new tool in every list, and it is missing from one")
		}
	}
	n.good("the news came over another replica, and the new tool is there on all")
	return nil
}

func (w *world) addTool(i int) {
	mcp.AddTool(w.servers[i], &mcp.Tool{Name: "news", Description: "Is new."},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, told, error) {
			return nil, told{Replica: name(i)}, nil
		})
}
