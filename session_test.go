package sessionshare

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewRefusesNonsense(t *testing.T) {
	_, err := New(Options{IdleTimeout: -1})
	require.ErrorContains(t, err, "Options.IdleTimeout")
}
