package sessionshare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// recordVersion is the version of the record that this code writes, and the
// newest that it reads.
const recordVersion = 1

// A record is what the store holds about a session: what another replica needs
// to make a copy of it. It is never changed once it is made. It holds no token
// and not the session ID.
type record struct {
	Version   int         `json:"v"`
	Principal string      `json:"principal"`
	Endpoint  string      `json:"endpoint"`
	Incarn    string      `json:"incarnation,omitempty"`
	Scope     []byte      `json:"scope,omitempty"`
	Path      string      `json:"path"`              // of the opening request
	Headers   http.Header `json:"headers,omitempty"` // of the opening request, those named in OpenHeaders
	Protocol  string      `json:"protocol"`          // as negotiated
	IdleMS    int64       `json:"idle_ms"`
	Key       []byte      `json:"key"` // authenticates the IDs of questions, see ask.go

	// Params are the initialize parameters as the client sent them, byte for
	// byte: the SDK may know fields of which this library does not.
	Params json.RawMessage `json:"-"`
}

// paramsField comes last in a record and is appended by hand: encoding/json
// would reformat the bytes.
const paramsField = `,"params":`

var (
	errRecordUnusable = errors.New("sessionshare: record is not usable: not JSON, not UTF-8, or a field is missing")
	errRecordNewer    = errors.New("sessionshare: record was written by a newer version of this library")
	errRecordTooLarge = fmt.Errorf("sessionshare: the record of this session would be over %d bytes", MaxValueBytes)
)

func (r *record) binding() Binding {
	return Binding{
		Principal: r.Principal,
		Endpoint:  Endpoint{Name: r.Endpoint, Incarnation: r.Incarn},
		Scope:     bytes.Clone(r.Scope),
	}
}

func (r *record) endpoint() Endpoint  { return Endpoint{Name: r.Endpoint, Incarnation: r.Incarn} }
func (r *record) idle() time.Duration { return time.Duration(r.IdleMS) * time.Millisecond }

// encode returns the record as the store holds it. It fails if the store could
// not take it, or another replica could not read it.
func (r *record) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b = append(b[:len(b)-1], paramsField...)
	b = append(b, r.Params...)
	b = append(b, '}')
	if len(b) > MaxValueBytes {
		return nil, errRecordTooLarge
	}
	// What is not UTF-8 does not survive JSON: another replica would compare it
	// with the real thing and answer 404.
	back, err := decodeRecord(b)
	if err != nil || !bytes.Equal(back.Params, r.Params) || back.Principal != r.Principal ||
		back.endpoint() != r.endpoint() || back.Path != r.Path {
		return nil, errRecordUnusable
	}
	return b, nil
}

// decodeRecord reads what the store holds. It is lenient with fields it does not
// know, and strict with what a copy cannot do without.
func decodeRecord(b []byte) (*record, error) {
	if len(b) > MaxValueBytes {
		return nil, errRecordUnusable
	}
	var v struct {
		record
		Params json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		// A newer version may have changed the type of a field.
		var only struct {
			Version int `json:"v"`
		}
		if json.Unmarshal(b, &only) == nil && only.Version > recordVersion {
			return nil, errRecordNewer
		}
		return nil, errRecordUnusable
	}
	r := new(record) // not &v.record, which would keep all of v
	*r = v.record
	r.Params = bytes.Clone(v.Params) // of exact size
	switch {
	case r.Version > recordVersion:
		return nil, errRecordNewer
	case r.Version < 1, r.Protocol == "", r.IdleMS < 1, r.IdleMS > maxIdleMS, len(r.Params) == 0, r.Params[0] != '{', len(r.Key) < recordKey,
		len(r.Scope) > maxScope:
		return nil, errRecordUnusable
	}
	return r, nil
}

// recordKey is the length of record.Key in bytes.
const recordKey = 16

// maxIdleMS keeps twice the idle timeout, the life of a mark, a Duration.
const maxIdleMS = int64(1<<63-1) / int64(time.Millisecond) / 4
