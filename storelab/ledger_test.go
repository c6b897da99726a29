//go:build unix

package storelab

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// grace is what a busy machine may add to every bound.
const grace = 2 * time.Second

// closedBound is for how long a closed session may be served elsewhere where the
// store can be read (rule 1 of the design).
const closedBound = recheckInterval + storeTimeout + grace

// answerBound is for how long an answer that is not held may take: the close marks
// are read, and a tool or a DELETE reads and writes.
const answerBound = 3*storeTimeout + grace

// A session is what the clients know of one.
type session struct {
	id       string
	opener   int
	unsure   bool      // opened while the store was away: until it is shared, others do not know it
	shared   bool      // another replica has served it
	hosted   bool      // all replicas hosted it before the fault
	deleting bool      // a DELETE was sent
	closed   time.Time // the DELETE was answered 204; zero: it was not
	closedBy int
	upstream string // what must exist once
}

// A ledger judges every answer, and counts. A verdict that is not in the design
// is a violation.
type ledger struct {
	mu         sync.Mutex // guards all below, and the fields of sessions
	sessions   []*session
	violations []string

	from, healed time.Time   // of the fault; zero: not yet
	readable     []time.Time // when each replica's store answered again
	settled      time.Time   // when all did

	requests, refused, toolErrors, unknown int // 503; a tool that needed the store; 404 of a session not shared yet
	late                                   int // 503 with nothing out of order, after StoreTimeout
	slowest                                time.Duration
	lastRefusal                            time.Time
}

func (l *ledger) violated(format string, args ...any) {
	if len(l.violations) < 20 {
		when := "before the fault: "
		if !l.from.IsZero() {
			when = fmt.Sprintf("%.2f s after the fault began: ", time.Since(l.from).Seconds())
		}
		l.violations = append(l.violations, when+fmt.Sprintf(format, args...))
	}
}

// calm reports whether a request cannot have met the fault. l.mu is held.
func (l *ledger) calm(began, ended time.Time) bool {
	return l.from.IsZero() || ended.Before(l.from) ||
		!l.settled.IsZero() && began.After(l.settled.Add(storeTimeout+grace))
}

// opened judges the answer to an initialize and returns the session.
func (l *ledger) opened(i int, began time.Time, w *httptest.ResponseRecorder) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(began)
	id := w.Header().Get("Mcp-Session-Id")
	if w.Code != http.StatusOK || id == "" {
		l.violated("an initialize was answered %d %s", w.Code, w.Body)
		return nil
	}
	s := &session{id: id, opener: i, unsure: !l.calm(began, time.Now())}
	l.sessions = append(l.sessions, s)
	return s
}

func (l *ledger) count(began time.Time) {
	l.requests++
	l.slowest = max(l.slowest, time.Since(began))
}

// judge judges the answer of replica i to a request that is no open.
func (l *ledger) judge(kind string, s *session, i int, began time.Time, w *httptest.ResponseRecorder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(began)
	ended := time.Now()
	calm := l.calm(began, ended)
	if took := ended.Sub(began); kind != "note" && took > answerBound {
		l.violated("a %s was answered after %v", kind, took)
	}
	switch w.Code {
	case http.StatusOK, http.StatusAccepted:
		l.served(kind, s, i, began, calm, w.Body.String())
	case http.StatusNoContent:
		if kind != "delete" {
			l.violated("a %s was answered 204", kind)
		}
	case http.StatusNotFound:
		switch {
		case s.deleting:
		case s.unsure && !s.shared && i != s.opener:
			l.unknown++
		default:
			l.violated("lost: a %s of a session that nobody closed was answered 404 (opener %d, asked %d, shared %t)", kind, s.opener, i, s.shared)
		}
	case http.StatusServiceUnavailable:
		l.refused++
		l.lastRefusal = ended
		switch {
		case calm && ended.Sub(began) >= storeTimeout:
			l.late++ // the store did not answer in time: so busy is the machine
		case calm:
			l.violated("a %s was answered 503 after %v with nothing out of order", kind, ended.Sub(began))
		case s.hosted && kind != "delete":
			l.violated("a %s of a session that is hosted there was answered 503", kind)
		case kind == "stream" || kind == "note":
			l.violated("a %s was answered 503 after %v, no client sends it again", kind, ended.Sub(began))
		}
	default:
		l.violated("a %s was answered %d %s", kind, w.Code, w.Body)
	}
}

// served judges an answer that says that the session is there. l.mu is held.
func (l *ledger) served(kind string, s *session, i int, began time.Time, calm bool, body string) {
	if !s.closed.IsZero() {
		// The bound counts from when this replica could read the mark.
		since := s.closed
		if !l.from.IsZero() && l.readable[i].After(since) {
			since = l.readable[i]
		}
		able := calm || !l.readable[i].IsZero()
		switch {
		case i == s.closedBy && began.After(s.closed):
			l.violated("revived: a %s was served by the replica that had closed the session %v before", kind, began.Sub(s.closed))
		case able && began.After(since.Add(closedBound)):
			l.violated("revived: a %s was served %v after the close", kind, began.Sub(s.closed))
		}
	}
	s.shared = s.shared || i != s.opener
	if kind != "call" && kind != "upstream" {
		return
	}
	if _, after, ok := strings.Cut(body, "upstream="); ok {
		who, _, _ := strings.Cut(after, ";")
		if s.upstream != "" && s.upstream != who {
			l.violated("what exists once per session was %s and is %s", s.upstream, who)
		}
		s.upstream = who
		return
	}
	switch {
	case strings.Contains(body, `"result"`):
	case strings.Contains(body, `"error"`) && (s.deleting || kind == "upstream" && !calm):
		l.toolErrors++
	default:
		l.violated("a %s was answered 200 %q", kind, body)
	}
}

// closedBy notes that a DELETE was answered 204 by replica i, or, with -1, that
// no replica knows the session.
func (l *ledger) closedBy(s *session, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.closed, s.closedBy = time.Now(), i
}

// pick returns a session that fits, or nil.
func (l *ledger) pick(fits func(*session) bool, n int) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.sessions {
		if s := l.sessions[(n+k)%len(l.sessions)]; fits(s) {
			return s
		}
	}
	return nil
}
