//go:build unix

package storelab

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// With -write the tests measure at length and write what they find into docs/;
// without it they check the same rules, and measure only so much that the
// measuring is known to work.
var write = flag.Bool("write", false, "write the figures into docs/STORES.md and docs/stores.svg")

// This binary, started again, is also the processes that tests need to kill:
// childEnv names what it does, and its argument after a colon.
const childEnv = "STORELAB_CHILD"

var children = map[string]func(arg string) error{
	"nats":     serveNATS,
	"hold":     holdSQLite,
	"scribble": scribble,
}

func TestMain(m *testing.M) {
	if name, arg, ok := strings.Cut(os.Getenv(childEnv), ":"); ok {
		if err := children[name](arg); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	if ferretDir != "" {
		_ = os.RemoveAll(ferretDir)
	}
	if code == 0 && *write {
		if err := writeDocs(); err != nil {
			fmt.Println("docs:", err)
			code = 1
		}
	}
	os.Exit(code)
}
