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
		story, verb string
		err         error
		code        uint
	}{
		{"a bad environment", verbAdd, badArgs("x"), 4},
		{"the caller's own netns is gone", verbAdd, ipam.ErrNetns, 4},
		{"the disk", verbAdd, store.ErrIO, 5},
		{"the caller has gone", verbAdd, errPrint, 5},
		{"broken JSON", verbAdd, errJSON, 6},
		{"a bad configuration", verbCheck, errConfig, 7},
		{"a bad annotation", verbAdd, errAnnotation, 7},
		{"requests that no set can serve", verbAdd, ipam.ErrRequest, 7},
		{"a busy store", verbAdd, store.ErrBusy, 11},
		{"a lost store", verbAdd, store.ErrLost, 11},
		{"a newer store", verbAdd, store.ErrNewer, 11},
		{"a damaged record", verbAdd, store.ErrDamaged, 11},
		{"a full pool", verbAdd, ipam.ErrExhausted, 11},
		{"the old sandbox is alive", verbAdd, ipam.ErrHolderAlive, 11},
		{"somebody else's address", verbAdd, ipam.ErrTaken, 11},
		{"a panic", verbDel, errPanic, 11},
		{"what nobody foresaw", verbAdd, errors.New("x"), 11},
		{"not the holder", verbCheck, ipam.ErrNotHolder, 100},
		{"STATUS has one code: not ready", verbStatus, ipam.ErrNotReady, 50},
		{"STATUS with a bad configuration", verbStatus, errConfig, 50},
		{"STATUS that nobody foresaw", verbStatus, errors.New("x"), 50},
		{"several at once: the first of the table", verbDel, errors.Join(store.ErrBusy, store.ErrIO), 11},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			got := coded(tt.verb, fmt.Errorf("while trying: %w", tt.err))
			if got.Code != tt.code {
				t.Errorf("code %d, want %d", got.Code, tt.code)
			}
			if !strings.Contains(got.Msg, "while trying: ") || got.Details == "" || strings.Contains(got.Msg, "\n") {
				t.Errorf("msg %q, details %q: want the whole error in one line, and what to do", got.Msg, got.Details)
			}
		})
	}
}

// TestDelIsNeverSwallowed: containerd takes a DEL for done whose error has one
// of these words (FACTS 2.15).
func TestDelIsNeverSwallowed(t *testing.T) {
	for _, err := range []error{
		&fs.PathError{Op: "open", Path: "/run/leasehold/lock", Err: fs.ErrNotExist},
		&fs.PathError{Op: "open", Path: "/x", Err: errors.New("no such file or directory")},
		fmt.Errorf("%w: bucket not found", store.ErrLost),
		errors.Join(store.ErrBusy, errors.New("spool: no such file or directory; not found")),
	} {
		got := coded(verbDel, err).Error()
		for _, word := range []string{"not found", "no such file or directory"} {
			if strings.Contains(got, word) {
				t.Errorf("DEL's error %q has %q in it", got, word)
			}
		}
	}
	for _, tr := range append(translations, fallback) {
		if got := swallowed.Replace(tr.advice); got != tr.advice {
			t.Errorf("the advice %q would be swallowed", tr.advice)
		}
	}
}
