package sessionshare

import (
	"errors"
	"net/http"
	"time"
)

// find reads the record of a session that is not hosted here, and checks that it
// is open and bound to who asks. Foreign, unknown, closed and expired are one
// answer.
func (r *Replica) find(req *http.Request, id, principal string, endpoint Endpoint) (*found, error) {
	began := r.now()
	switch {
	case r.stopping.Load():
		return nil, errStopping
	case r.store == nil, r.closures.session(id):
		return nil, ErrGone
	}
	r.serves(endpoint)
	d := digestOf(id)
	keys := []string{r.keys.session(d), r.keys.closed(d)}
	if endpoint.Incarnation != "" {
		keys = append(keys, r.keys.endpoint(endpoint))
	}
	marks := len(keys)
	if r.store.batch != nil {
		keys = append(keys, r.keys.state(d), r.keys.stream(d))
	}
	values, err := r.store.get(req.Context(), keys...)
	if err != nil {
		return nil, unsure("the record cannot be read", err)
	}
	if values[0] == nil || values[1] != nil {
		return nil, ErrGone
	}
	rec, err := decodeRecord(values[0])
	switch {
	case errors.Is(err, errRecordNewer):
		return nil, r.lags.doubt(id, r.now(), err.Error())
	case err != nil:
		r.unusable(d)
		return nil, ErrGone
	case rec.Principal != principal, rec.Endpoint != endpoint.Name:
		return nil, ErrGone
	case rec.Incarn != endpoint.Incarnation:
		return nil, r.otherIncarnation(req, id, rec)
	case marks > 2 && values[2] != nil, r.closures.endpoint(endpoint):
		return nil, ErrGone
	}
	return &found{rec: rec, began: began, more: values[marks:]}, nil
}

// found is what is known of a session that is about to be resumed.
type found struct {
	rec   *record
	began time.Time // before it was read
	more  [][]byte  // state and stream; empty: not read yet
}

// otherIncarnation decides about a session that was opened on another incarnation
// than this replica serves: if that one is closed, or this replica has left it
// behind, the session is gone; else this replica has not loaded it yet.
func (r *Replica) otherIncarnation(req *http.Request, id string, rec *record) error {
	e := rec.endpoint()
	if r.closures.endpoint(e) || r.lags.passed(e) {
		return ErrGone
	}
	if e.Incarnation != "" {
		values, err := r.store.get(req.Context(), r.keys.endpoint(e))
		if err != nil {
			return unsure("the close mark of the endpoint cannot be read", err)
		}
		if values[0] != nil {
			return ErrGone
		}
	}
	return r.lags.doubt(id, r.now(), "it has not loaded the incarnation that the session was opened on")
}

// maxUnusables bounds how many unusable records are remembered.
const maxUnusables = 1000

// unusable logs a record that does not decode. It is not rewritten: what is not
// understood is not touched.
func (r *Replica) unusable(d sessionDigest) {
	if _, logged := r.unusables.LoadOrStore(d, struct{}{}); !logged {
		if r.unusableCount.Add(1)%maxUnusables == 0 {
			r.unusables.Clear() // better logged twice than remembered for ever
		}
		r.log.Error("sessionshare: a record in the store is not usable", "session", d.short())
	}
}
