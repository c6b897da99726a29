package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// A registry says which endpoints there are and who may use them. It stands for
// the database of a real gateway: here it is a folder with a file per thing, so
// that all gateways of a machine can share it. Every change is one atomic step of
// the file system, and every look reads the truth, so no replica ever lags.
type registry struct{ dir string }

// An endpoint is a virtual MCP server. It is deleted and made anew, never edited:
// its incarnation stands for all of it.
type endpoint struct {
	Incarnation string   `json:"incarnation"`
	Upstreams   []string `json:"upstreams"`
}

// A token is what is known of an access token; the token itself is not stored.
// Refreshing gives a further token under the same grant; revoking ends the grant.
type token struct {
	User    string    `json:"user"`
	Grant   string    `json:"grant"`
	Scopes  []string  `json:"scopes,omitempty"`
	Expires time.Time `json:"expires"`
}

// Folders of a registry.
const (
	endpoints = "endpoints" // by name
	removed   = "removed"   // endpoints that were, under random names
	tokens    = "tokens"    // by hash of the token
	revoked   = "revoked"   // by grant
)

// adminScope is the scope of tokens that may change the registry.
const adminScope = "admin"

func openRegistry(dir string) (*registry, error) {
	for _, sub := range []string{endpoints, removed, tokens, revoked} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	return &registry{dir}, nil
}

// fresh reports whether nobody was ever given a token.
func (r *registry) fresh() (bool, error) {
	found, err := os.ReadDir(filepath.Join(r.dir, tokens))
	return len(found) == 0, err
}

// endpoint returns an endpoint as it is now. A missing one is fs.ErrNotExist; any
// other error says nothing about the endpoint.
func (r *registry) endpoint(name string) (e endpoint, err error) {
	return e, r.read(&e, endpoints, name)
}

// create makes an endpoint with an incarnation of its own, or fails with fs.ErrExist.
func (r *registry) create(name string, upstreams []string) (endpoint, error) {
	e := endpoint{Incarnation: rand.Text(), Upstreams: upstreams}
	return e, r.write(e, endpoints, name)
}

// remove takes an endpoint away and returns it. Of several who remove it at once,
// one gets it, and it is that one and no later incarnation of the name.
func (r *registry) remove(name string) (e endpoint, err error) {
	if !validName.MatchString(name) {
		return e, fs.ErrNotExist
	}
	away := rand.Text()
	if err := os.Rename(r.path(endpoints, name), r.path(removed, away)); err != nil {
		return e, err
	}
	return e, r.read(&e, removed, away)
}

// issue gives a user a token; grant "" begins a new grant.
func (r *registry) issue(user, grant string, scopes []string, life time.Duration) (secret string, t token, err error) {
	if user == "" {
		return "", token{}, errors.New("registry: a token needs a user")
	}
	if grant == "" {
		grant = rand.Text()
	}
	t = token{User: user, Grant: grant, Scopes: slices.Clone(scopes), Expires: time.Now().Add(life)}
	secret = rand.Text()
	return secret, t, r.write(t, tokens, hash(secret))
}

// verify is an auth.TokenVerifier.
func (r *registry) verify(_ context.Context, secret string, _ *http.Request) (*auth.TokenInfo, error) {
	var t token
	if err := r.read(&t, tokens, hash(secret)); errors.Is(err, fs.ErrNotExist) {
		return nil, auth.ErrInvalidToken
	} else if err != nil {
		return nil, err
	}
	if gone, err := r.revoked(t.Grant); err != nil {
		return nil, err
	} else if gone {
		return nil, auth.ErrInvalidToken
	}
	return &auth.TokenInfo{
		UserID: t.User, Scopes: t.Scopes, Expiration: t.Expires,
		Extra: map[string]any{"grant": t.Grant},
	}, nil
}

// revoke ends a grant: all its tokens, now and later.
func (r *registry) revoke(grant string) error {
	err := r.write(struct{}{}, revoked, grant)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// revoked reports whether a grant was revoked. Nothing is concluded from an error.
func (r *registry) revoked(grant string) (bool, error) {
	_, err := os.Stat(r.path(revoked, grant))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// validName is what may be a file's name: no dots, no slashes.
var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,63}$`)

func (r *registry) path(folder, name string) string { return filepath.Join(r.dir, folder, name) }

func (r *registry) read(v any, folder, name string) error {
	if !validName.MatchString(name) {
		return fs.ErrNotExist
	}
	data, err := os.ReadFile(r.path(folder, name))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// write makes a file with all its content in one step, or fails with fs.ErrExist.
func (r *registry) write(v any, folder, name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("registry: %q is no name", name)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	draft := r.path("", "draft-"+rand.Text())
	defer os.Remove(draft)
	if err := os.WriteFile(draft, data, 0o600); err != nil {
		return err
	}
	return os.Link(draft, r.path(folder, name))
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
