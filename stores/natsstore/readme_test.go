package natsstore_test

import (
	"os"
	"strings"
	"testing"
)

// The program in the README is the example, which is compiled.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	program := strings.NewReplacer("package natsstore_test", "package main", "func Example()", "func main()").Replace(string(example))
	if !strings.Contains(string(readme), "```go\n"+program+"```\n") {
		t.Error("the program in README.md is not that of example_test.go")
	}
}
