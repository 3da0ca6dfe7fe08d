package check

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// failures counts what fails.
type failures int

func (*failures) Helper() {}

func (f *failures) Errorf(string, ...any) { *f++ }

// Each of the first calls fails, and none of the others does.
func TestFailures(t *testing.T) {
	var bad, good failures
	Equal(&bad, 1, 2)
	Equal(&bad, "a\nb", "a\nc", "a name")
	Slices(&bad, []int{1}, []int{2})
	Slices(&bad, []string{"a", "b"}, []string{"a"})
	Empty(&bad, []int{1})
	Between(&bad, 1, 2, 3)
	Between(&bad, 4, 2, 3)
	Is(&bad, io.EOF, nil)
	Is(&bad, nil, io.EOF)
	Error(&bad, nil, "a")
	Error(&bad, io.EOF, "")
	Error(&bad, io.EOF, "b")
	Contains(&bad, "a", "b")
	NoDiff(&bad, "a")

	Equal(&good, 1, 1)
	Slices(&good, []int{}, nil)
	Empty(&good, []int{})
	Between(&good, 2, 2, 2)
	Is(&good, fmt.Errorf("a: %w", io.EOF), io.EOF)
	Is(&good, nil, nil)
	Error(&good, errors.New("abc"), "b")
	Error(&good, nil, "")
	Contains(&good, "ab", "b")
	NoDiff(&good, "")
	if bad != 14 || good != 0 {
		t.Errorf("%d of 14 differences were found, and %d of none", bad, good)
	}
}
