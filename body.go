package sessionshare

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// unlimitedBody is how much of a body is looked at where the host has lifted
	// the SDK's limit.
	unlimitedBody = 64 << 20

	// trustedLength is how much memory a Content-Length is worth before the bytes
	// have come.
	trustedLength = 256 << 10

	// reusedBody is from what size on a body is read into memory that others were
	// read into before: new memory of that size costs the collector and the kernel
	// more than all else that is done here. Not much is kept: of buffers nobody has
	// used for two collections, and of larger ones, nothing.
	reusedBody    = 64 << 10
	maxReusedBody = mcp.DefaultMaxRequestBodyBytes + 1
)

// bodyBuffers holds *[]byte with at least reusedBody bytes each.
var bodyBuffers sync.Pool

// A body is the body of a request: read once, at the moment it is first needed,
// looked into, and given to the SDK as often as need be. It is one piece of
// memory with all else that the library needs for a call, but the bytes.
type body struct {
	req *http.Request
	h   *handler // whose limit it is

	read   bool
	done   bool // the SDK has its own copy of data, and nobody else needs it
	data   []byte
	rest   io.Reader // what was not read: beyond the limit, or a read error
	buffer *[]byte   // what data is in, if that is to be used again; nil if not
	scanned

	reader bodyReader
	writer postWriter
}

// A bodyReader gives a body to the SDK.
type bodyReader struct {
	data bytes.Reader
	rest io.Reader
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if r.rest == nil || r.data.Len() > 0 {
		return r.data.Read(p)
	}
	return r.rest.Read(p)
}

func (r *bodyReader) Close() error { return nil }

// bodyLimit returns how much of a body may be read under the SDK's options, and
// whether that is only what is looked at.
func bodyLimit(opts *mcp.StreamableHTTPOptions) (limit int64, unlimited bool) {
	switch n := opts.MaxRequestBodyBytes; {
	case n == 0:
		return mcp.DefaultMaxRequestBodyBytes, false
	case n < 0:
		return unlimitedBody, true
	default:
		return n, false
	}
}

// load reads the body, if that was not done before.
func (b *body) load() *body {
	if b.read {
		return b
	}
	b.read = true
	if b.req.Body == nil || b.req.Body == http.NoBody {
		return b
	}
	length := b.req.ContentLength
	if length > b.h.limit {
		b.rest = b.beyond()
		return b
	}
	size := int64(512)
	if length >= 0 {
		size = min(length, trustedLength) + 1 // one more, to see the end without growing
	}
	data := b.memory(size)
	for {
		n, err := b.req.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > b.h.limit:
			b.data = data
			b.rest = b.beyond()
			return b
		case err == io.EOF:
			b.data = data
			b.scanned = scan(data)
			return b
		case err != nil:
			b.data, b.rest = data, failedReader{err}
			return b
		case len(data) == cap(data):
			old := b.buffer
			data = append(b.memory(max(2*int64(cap(data)), min(length, b.h.limit)+1)), data...)
			giveBack(old)
		}
	}
}

// memory returns room for n bytes.
func (b *body) memory(n int64) []byte {
	b.buffer = nil
	if n < reusedBody || n > maxReusedBody {
		return make([]byte, 0, n)
	}
	if old, _ := bodyBuffers.Get().(*[]byte); old != nil && int64(cap(*old)) >= n {
		if int64(cap(*old)) <= 4*n {
			b.buffer = old
			return *old
		}
		giveBack(old) // what is held or comes slowly holds no more than four times its size
	}
	data := make([]byte, 0, n)
	b.buffer = &data
	return data
}

func giveBack(buffer *[]byte) {
	if buffer != nil {
		bodyBuffers.Put(buffer)
	}
}

// release gives the memory of the body back, if nobody can have kept a part of it.
// It is called when the request is over.
func (b *body) release() {
	if !b.done {
		return
	}
	b.reader.data.Reset(nil) // the host still has the request
	b.data, b.scanned = nil, scanned{}
	giveBack(b.buffer)
	b.buffer = nil
}

// again returns the whole body, from its beginning.
func (b *body) again() io.ReadCloser {
	b.reader.data.Reset(b.data)
	b.reader.rest = b.rest
	return &b.reader
}

// untouched reports whether nobody has read what again returned, so that it can
// be given out once more.
func (b *body) untouched() bool { return b.rest == nil && b.reader.data.Len() == len(b.data) }

// beyond is what follows what was read of a body over the limit: as much as the
// SDK would have read, and then the error that has it answer 413. The handlers of
// copies have no limit of their own, which would count again what was read here.
func (b *body) beyond() io.Reader {
	switch {
	case b.h.unlimited:
		return b.req.Body
	case b.data == nil:
		return http.MaxBytesReader(nil, b.req.Body, b.h.limit)
	}
	return failedReader{&http.MaxBytesError{Limit: b.h.limit}}
}

type failedReader struct{ err error }

func (r failedReader) Read([]byte) (int, error) { return 0, r.err }
