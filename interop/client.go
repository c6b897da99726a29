package interop

import (
	"context"
	"sync"
	"time"
)

// A Client is one MCP client, connected or not. All that are tested answer what
// they are asked in the same way:
//
//   - a form with {"answer": "re: " + message}, or declined if the message begins
//     with "refuse", after slowness if it begins with "slow"; a URL with accept;
//   - sampling with "re: " + the text;
//   - roots with file:///first and what AddRoot has added.
//
// Every call asks for progress.
type Client interface {
	Connect(ctx context.Context, url string) error
	SessionID() string

	List(ctx context.Context) (Lists, error)
	Read(ctx context.Context, uri string) (string, error)
	Prompt(ctx context.Context, who string) (string, error)
	Complete(ctx context.Context, prefix string) (string, error)
	Call(ctx context.Context, tool string, a Args) (string, error) // cancelled with ctx
	Ping(ctx context.Context) error
	SetLevel(ctx context.Context, level string) error
	Subscribe(ctx context.Context, uri string) error
	Unsubscribe(ctx context.Context, uri string) error
	AddRoot(ctx context.Context, uri string) error

	Terminate(ctx context.Context) error // DELETE
	Close()                              // whatever state it is in

	Seen() *Seen
}

// Lists are the names of what a server offers.
type Lists struct{ Tools, Resources, Prompts []string }

// A Quirk is something a client cannot do.
type Quirk string

const (
	// NoCancel: cancelling a call does not tell the server.
	NoCancel Quirk = "a call is cancelled without telling the server"
	// NoResumeAfterReset: an answer's stream is resumed after a clean end only.
	NoResumeAfterReset Quirk = "the stream of a call is not resumed after a reset"
	// NoLastEventID: the session's stream is reopened as if it were new, so that
	// with an EventStore all is replayed.
	NoLastEventID Quirk = "the stream is reopened without Last-Event-ID"
)

// A Maker makes clients of one kind.
type Maker struct {
	Name   string
	New    func() (Client, error)
	Quirks []Quirk
}

// An Event is something a client was told.
type Event struct {
	Kind string `json:"kind"` // log, progress, updated, tools, prompts, resources, asked
	Text string `json:"text"`
}

// Seen is what a client was told, in order.
type Seen struct {
	mu     sync.Mutex // guards all below
	events []Event
	more   chan struct{} // closed when one comes
}

// Add is called by clients.
func (s *Seen) Add(kind, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, Event{kind, text})
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
}

// Mark is a place to count from.
func (s *Seen) Mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

// Since returns the events after a mark, and what is closed when there are more.
func (s *Seen) Since(mark int) ([]Event, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return append([]Event(nil), s.events[mark:]...), s.more
}

// Texts returns the texts of one kind after a mark.
func (s *Seen) Texts(mark int, kind string) (out []string) {
	events, _ := s.Since(mark)
	for _, e := range events {
		if e.Kind == kind {
			out = append(out, e.Text)
		}
	}
	return out
}

// Await waits for n events that match, and returns how many there are then.
func (s *Seen) Await(ctx context.Context, in time.Duration, mark, n int, match func(Event) bool) int {
	timer := time.NewTimer(in)
	defer timer.Stop()
	for {
		events, more := s.Since(mark)
		got := 0
		for _, e := range events {
			if match(e) {
				got++
			}
		}
		if got >= n {
			return got
		}
		select {
		case <-more:
		case <-timer.C:
			return got
		case <-ctx.Done():
			return got
		}
	}
}

// Is matches one event.
func Is(kind, text string) func(Event) bool {
	return func(e Event) bool { return e == Event{kind, text} }
}
