package cniplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

// TestCoded has what the table of translations, which docs/reference.md shows, does not say.
func TestCoded(t *testing.T) {
	tests := []struct {
		name, verb string
		err        error
		code       uint
	}{
		{"an error of the table", verbAdd, errEnvironment, 4},
		{"an unknown error", verbAdd, errors.New("x"), 11},
		{"STATUS: not ready", verbStatus, ipam.ErrNotReady, 50},
		{"STATUS: an invalid configuration", verbStatus, errConfig, 50},
		{"STATUS: an unknown error", verbStatus, errors.New("x"), 50},
		{"several errors: the first of the list wins", verbDel, errors.Join(store.ErrBusy, store.ErrIO), 11},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := coded(tt.verb, fmt.Errorf("while trying: %w", tt.err))
			check.Equal(t, got.Code, tt.code, "code")
			if !strings.Contains(got.Msg, "while trying: ") || got.Details == "" || strings.Contains(got.Msg, "\n") {
				t.Errorf("msg %q, details %q; want the whole error in one line, and details", got.Msg, got.Details)
			}
		})
	}
}

// TestDelErrorsAreNotTakenForSuccess verifies that no error of DEL contains a phrase that makes
// containerd treat the DEL as successful (docs/facts.md, "Two phrases in a DEL error make it a
// success").
func TestDelErrorsAreNotTakenForSuccess(t *testing.T) {
	for _, err := range []error{
		&fs.PathError{Op: "open", Path: "/run/leasehold/lock", Err: fs.ErrNotExist},
		&fs.PathError{Op: "open", Path: "/x", Err: errors.New("no such file or directory")},
		fmt.Errorf("%w: bucket not found", store.ErrLost),
		errors.Join(store.ErrBusy, errors.New("queue: no such file or directory; not found")),
	} {
		got := coded(verbDel, err).Error()
		for _, phrase := range []string{"not found", "no such file or directory"} {
			if strings.Contains(got, phrase) {
				t.Errorf("error %q contains %q", got, phrase)
			}
		}
	}
	for _, tr := range append(translations, fallback) {
		check.Equal(t, notSuccess.Replace(tr.advice), tr.advice, "the advice without such a phrase")
	}
}
