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
// looked into, and given to the SDK as often as need be.
type body struct {
	req   *http.Request
	limit int64

	read bool
	data []byte
	rest io.Reader // what was not read: beyond the limit, or a read error
	scanned
}

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

// reader returns the whole body, from its beginning, and where it was read from:
// untouched reports whether nobody has read it.
func (b *body) reader() (r io.ReadCloser, untouched func() bool) {
	data := bytes.NewReader(b.data)
	if b.rest == nil {
		return io.NopCloser(data), func() bool { return data.Len() == len(b.data) }
	}
	return io.NopCloser(io.MultiReader(data, b.rest)), func() bool { return false }
}

type failedReader struct{ err error }

func (r failedReader) Read([]byte) (int, error) { return 0, r.err }
