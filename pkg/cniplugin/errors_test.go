package cniplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func TestCoded(t *testing.T) {
	tests := []struct {
		name, verb string
		err        error
		code       uint
	}{
		{"an invalid environment", verbAdd, errEnvironment, 4},
		{"the container's network namespace is missing", verbAdd, ipam.ErrNetns, 4},
		{"an I/O error", verbAdd, store.ErrIO, 5},
		{"stdout is closed", verbAdd, errPrint, 5},
		{"invalid JSON", verbAdd, errJSON, 6},
		{"an invalid configuration", verbCheck, errConfig, 7},
		{"an invalid annotation", verbAdd, errAnnotation, 7},
		{"requested addresses that no set can serve", verbAdd, ipam.ErrRequest, 7},
		{"a busy store", verbAdd, store.ErrBusy, 11},
		{"a lost store", verbAdd, store.ErrLost, 11},
		{"a newer store", verbAdd, store.ErrNewer, 11},
		{"a damaged record", verbAdd, store.ErrDamaged, 11},
		{"a full pool", verbAdd, ipam.ErrExhausted, 11},
		{"the old sandbox still runs", verbAdd, ipam.ErrAddressInUse, 11},
		{"a requested address that is taken", verbAdd, ipam.ErrUnavailable, 11},
		{"a panic", verbDel, errPanic, 11},
		{"an unknown error", verbAdd, errors.New("x"), 11},
		{"not the holder", verbCheck, ipam.ErrCheckFailed, 100},
		{"STATUS: not ready", verbStatus, ipam.ErrNotReady, 50},
		{"STATUS: an invalid configuration", verbStatus, errConfig, 50},
		{"STATUS: an unknown error", verbStatus, errors.New("x"), 50},
		{"several errors: the first of the list wins", verbDel, errors.Join(store.ErrBusy, store.ErrIO), 11},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := coded(tt.verb, fmt.Errorf("while trying: %w", tt.err))
			if got.Code != tt.code {
				t.Errorf("code %d, want %d", got.Code, tt.code)
			}
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
		if got := notSuccess.Replace(tr.advice); got != tr.advice {
			t.Errorf("advice %q contains such a phrase", tr.advice)
		}
	}
}
