package sessionshare

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bad options: New returns an error that names the field.
func TestNewNamesTheFieldAtFault(t *testing.T) {
	for name, tc := range map[string]struct {
		field string
		opts  Options
	}{
		"negative idle":               {"IdleTimeout", Options{IdleTimeout: -1}},
		"tiny idle":                   {"IdleTimeout", Options{IdleTimeout: time.Millisecond}},
		"negative evict":              {"EvictAfter", Options{EvictAfter: -1}},
		"evict over idle":             {"EvictAfter", Options{EvictAfter: 2 * time.Hour, IdleTimeout: time.Hour}},
		"negative touch":              {"TouchInterval", Options{TouchInterval: -1}},
		"touch is idle":               {"TouchInterval", Options{TouchInterval: time.Hour, IdleTimeout: time.Hour}},
		"touch over idle":             {"TouchInterval", Options{TouchInterval: 25 * time.Hour}},
		"negative limit":              {"UnverifiedLimit", Options{UnverifiedLimit: -1}},
		"limit over idle":             {"UnverifiedLimit", Options{UnverifiedLimit: 2 * time.Hour, IdleTimeout: time.Hour}},
		"recheck over limit":          {"RecheckInterval", Options{RecheckInterval: time.Hour}},
		"negative store timeout":      {"StoreTimeout", Options{StoreTimeout: -1}},
		"negative hold":               {"HoldTimeout", Options{HoldTimeout: -1}},
		"prefix too long":             {"KeyPrefix", Options{KeyPrefix: strings.Repeat("x", 65)}},
		"prefix with a capital":       {"KeyPrefix", Options{KeyPrefix: "Mcp."}},
		"prefix with a colon":         {"KeyPrefix", Options{KeyPrefix: "mcp:"}},
		"prefix with a NUL":           {"KeyPrefix", Options{KeyPrefix: "mcp\x00"}},
		"open header, token":          {"OpenHeaders", Options{OpenHeaders: []string{"authorization"}}},
		"open header, cookie":         {"OpenHeaders", Options{OpenHeaders: []string{"X-A", "COOKIE"}}},
		"open header, session":        {"OpenHeaders", Options{OpenHeaders: []string{"mcp-session-id"}}},
		"open header, empty":          {"OpenHeaders", Options{OpenHeaders: []string{""}}},
		"session ID too short":        {"NewSessionID", Options{NewSessionID: func() string { return "short" }}},
		"session ID too long":         {"NewSessionID", Options{NewSessionID: func() string { return strings.Repeat("x", 257) }}},
		"session ID with a space":     {"NewSessionID", Options{NewSessionID: func() string { return "0123456789 abcdef" }}},
		"session ID that is not text": {"NewSessionID", Options{NewSessionID: func() string { return "0123456789abcd\xff\xff" }}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := New(tc.opts)
			require.Error(t, err)
			assert.Nil(t, r)
			assert.Contains(t, err.Error(), "Options."+tc.field)
			assert.True(t, strings.HasPrefix(err.Error(), "sessionshare: "))
		})
	}
}

// The bounds themselves are fine.
func TestNewAcceptsWhatIsSensible(t *testing.T) {
	for name, opts := range map[string]Options{
		"nothing":          {},
		"all equal":        {IdleTimeout: time.Hour, EvictAfter: time.Hour, UnverifiedLimit: time.Hour},
		"short idle":       {IdleTimeout: 10 * time.Second},
		"always recheck":   {RecheckInterval: -1},
		"long prefix":      {KeyPrefix: strings.Repeat("x", 64)},
		"open headers":     {OpenHeaders: []string{"x-tenant"}},
		"session ID of 16": {NewSessionID: func() string { return "0123456789abcdef" }},
		"memory store":     {Store: NewMemoryStore()},
	} {
		_, err := New(opts)
		assert.NoError(t, err, name)
	}
}

// Zero means the documented default.
func TestDefaults(t *testing.T) {
	r, err := New(Options{})
	require.NoError(t, err)
	assert.Equal(t, 24*time.Hour, r.opts.IdleTimeout)
	assert.Equal(t, 30*time.Minute, r.opts.EvictAfter)
	assert.Equal(t, 2*time.Second, r.recheckInterval())
	assert.Equal(t, 48*time.Minute, r.opts.TouchInterval)
	assert.Equal(t, 30*time.Minute, r.opts.UnverifiedLimit)
	assert.Equal(t, 2*time.Second, r.opts.StoreTimeout)
	assert.Equal(t, 15*time.Second, r.opts.HoldTimeout)
	assert.Equal(t, "mcp.sessions.", r.opts.KeyPrefix)
	r, err = New(Options{IdleTimeout: 10 * time.Minute})
	require.NoError(t, err)
	assert.Equal(t, 10*time.Minute, r.opts.EvictAfter, "at most IdleTimeout")
	assert.Equal(t, 10*time.Minute, r.opts.UnverifiedLimit)
	assert.Equal(t, 20*time.Second, r.opts.TouchInterval)
}

// Options are copied: what the caller changes later changes nothing.
func TestOptionsAreCopied(t *testing.T) {
	names := []string{"x-tenant"}
	r, err := New(Options{OpenHeaders: names})
	require.NoError(t, err)
	assert.Equal(t, []string{"x-tenant"}, names, "and the caller's are left alone")
	names[0] = "Authorization"
	assert.Equal(t, []string{"X-Tenant"}, r.opts.OpenHeaders)
}
