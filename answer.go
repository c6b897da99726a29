package sessionshare

import (
	"errors"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// The header names that this library reads, as net/http spells them.
const (
	headerSessionID   = "Mcp-Session-Id"
	headerLastEventID = "Last-Event-Id"
)

// The bodies of answers that clients look into. An error whose id is null makes
// the SDK's client report ErrSessionMissing for a 404; with any other id it would
// go on with a dead session.
const (
	bodyGone     = `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`
	bodyDoubtful = `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Session temporarily unavailable, try again"}}`
)

// A refusal is an answer with a status and a text of its own.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

var (
	errManyIDs     = &refusal{http.StatusBadRequest, "more than one Mcp-Session-Id header"}
	errNotAlone    = &refusal{http.StatusBadRequest, "initialize must be a single JSON-RPC message with nothing after it"}
	errParamsLarge = &refusal{http.StatusRequestEntityTooLarge, "initialize parameters exceed 128 KiB"}
	errScopeLarge  = &refusal{http.StatusBadRequest, "the scope of this session exceeds 64 KiB"}
	errNoUserID    = &refusal{http.StatusInternalServerError, "the TokenInfo of this request has no UserID: let the TokenVerifier set auth.TokenInfo.UserID, or set sessionshare.Options.Principal"}
	errNotText     = &refusal{http.StatusBadRequest, "this session cannot be recorded: its principal, endpoint, path and parameters must be UTF-8, the parameters a JSON object"}
	errRecordLarge = &refusal{http.StatusRequestEntityTooLarge, errRecordTooLarge.Error()}
	errBadID       = &refusal{http.StatusInternalServerError, "sessionshare.Options.NewSessionID must return 16 to 256 bytes of visible ASCII"}
)

// A doubtError says that something could not be known just now. Nothing ends for
// it: the request gets 503, or waits and is tried again.
type doubtError struct {
	what string
	err  error
}

func (e *doubtError) Error() string { return "sessionshare: " + e.what + ": " + e.err.Error() }
func (e *doubtError) Unwrap() error { return e.err }

func unsure(what string, err error) error { return &doubtError{what, err} }

// callbackError sorts the error of a callback: what is not said plainly is doubt.
func callbackError(name string, err error) error {
	var status *StatusError
	var refused *refusal
	if err == nil || errors.Is(err, ErrGone) || errors.As(err, &status) || errors.As(err, &refused) {
		return err
	}
	return unsure("Options."+name, err)
}

// doubtful reports whether err may be gone when the request is tried again.
func doubtful(err error) bool {
	var status *StatusError
	var refused *refusal
	return err != nil && !errors.Is(err, ErrGone) && !errors.As(err, &status) && !errors.As(err, &refused)
}

// answer sends what err means. It is the one place that decides status codes.
func (r *Replica) answer(w http.ResponseWriter, req *http.Request, err error) {
	var status *StatusError
	var refused *refusal
	switch {
	case errors.As(err, &status):
		for name, values := range status.Header {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		code := status.Status
		if code < 300 || code > 599 {
			code = http.StatusInternalServerError
		}
		http.Error(w, status.Error(), code)
	case errors.As(err, &refused):
		if refused.status >= 500 {
			r.log.Error("sessionshare: " + refused.text)
		}
		http.Error(w, refused.text, refused.status)
	case errors.Is(err, ErrGone):
		r.stats.gone.Add(1)
		answerJSON(w, http.StatusNotFound, bodyGone)
	case req.Method == http.MethodGet:
		// All clients reopen a stream that ended; none survives an error here.
		r.stats.doubtful.Add(1)
		emptyStream(w, req.Header.Get(headerLastEventID))
	default:
		r.stats.doubtful.Add(1)
		w.Header().Set("Retry-After", "1")
		answerJSON(w, http.StatusServiceUnavailable, bodyDoubtful)
	}
}

func answerJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// tokenPrincipal is the default of Options.Principal.
func tokenPrincipal(req *http.Request) (string, error) {
	info := auth.TokenInfoFromContext(req.Context())
	switch {
	case info == nil:
		return "", nil
	case info.UserID == "":
		return "", errNoUserID
	}
	return info.UserID, nil
}

// lagTime is for how long a session that this replica cannot serve yet, though
// others may, gets 503 rather than 404.
const lagTime = 30 * time.Second
