package sessionshare

import (
	"bytes"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// unlimitedBody is how much of a body is looked at where the host has lifted
	// the SDK's limit.
	unlimitedBody = 64 << 20

	// trustedLength is how much memory a Content-Length is worth before the bytes
	// have come.
	trustedLength = 256 << 10
)

// A body is the body of a request: read once, at the moment it is first needed,
// looked into, and given to the SDK as often as need be. It is one piece of
// memory with all else that the library needs for a call, but the bytes.
type body struct {
	req   *http.Request
	limit int64

	read bool
	data []byte
	rest io.Reader // what was not read: beyond the limit, or a read error
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

// bodyLimit returns how much of a body may be read under the SDK's options.
func bodyLimit(opts *mcp.StreamableHTTPOptions) int64 {
	switch n := opts.MaxRequestBodyBytes; {
	case n == 0:
		return mcp.DefaultMaxRequestBodyBytes
	case n < 0:
		return unlimitedBody
	default:
		return n
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
	if length > b.limit {
		b.rest = b.req.Body // the SDK answers 413
		return b
	}
	size := int64(512)
	if length >= 0 {
		size = min(length, trustedLength) + 1 // one more, to see the end without growing
	}
	data := make([]byte, 0, size)
	for {
		n, err := b.req.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > b.limit:
			b.data, b.rest = data, b.req.Body
			return b
		case err == io.EOF:
			b.data = data
			b.scanned = scan(data)
			return b
		case err != nil:
			b.data, b.rest = data, failedReader{err}
			return b
		case len(data) == cap(data):
			data = append(make([]byte, 0, max(2*int64(cap(data)), min(length, b.limit)+1)), data...)
		}
	}
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

type failedReader struct{ err error }

func (r failedReader) Read([]byte) (int, error) { return 0, r.err }
