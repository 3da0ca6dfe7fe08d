package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Annotation is the pod annotation that asks for retention: for how long after
// the pod's deletion nobody else gets its address.
const Annotation = "io.kubernetes.cri/reserved-ip-duration"

// The forms of a window, as regular expressions in the syntax that Go and CEL
// share. The admission policy uses the same ones, and testdata/windows.txt
// tests both.
const (
	MinutesPattern  = `^(0|[1-9][0-9]{0,8})$`
	DurationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
	ForeverWord     = "forever"
)

// MaxWindow is the longest window that a clock ends: ten years of 365 days.
// Whoever means longer means forever.
const MaxWindow = 10 * 365 * 24 * time.Hour

// windowForms ends every error about a window.
const windowForms = `want whole minutes ("10"), a duration ("90s", "24h"), "forever", or "0" for no retention; at most 10 years ("87600h")`

// Compiled at the first use: a plugin call without annotation pays nothing.
var (
	minutesRE  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(MinutesPattern) })
	durationRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(DurationPattern) })
)

// ParseWindow reads a window in the annotation's grammar (DESIGN 3): whole
// minutes, a Go duration without sign, or "forever". The result is 0 for no
// retention, at most MaxWindow, or lease.Forever. Nothing is trimmed and an
// empty string is no window, so that the admission policy can say the same.
func ParseWindow(s string) (time.Duration, error) {
	d, err := parseWindow(s)
	if err != nil {
		return 0, fmt.Errorf("%s %w; %s", Quote(s), err, windowForms)
	}
	return d, nil
}

func parseWindow(s string) (time.Duration, error) {
	var d time.Duration
	switch {
	case s == ForeverWord:
		return lease.Forever, nil
	case minutesRE().MatchString(s):
		n, err := strconv.Atoi(s)
		if err != nil || n > int(MaxWindow/time.Minute) {
			return 0, errTooLong
		}
		d = time.Duration(n) * time.Minute
	case durationRE().MatchString(s):
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			return 0, errTooLong // the form is right, so it is the size
		}
	default:
		return 0, errors.New("is not a window")
	}
	if d > MaxWindow {
		return 0, errTooLong
	}
	return d, nil
}

var errTooLong = errors.New("is too long")

// Asked is what a caller's pod annotations say of retention.
type Asked struct {
	Known  bool          // the annotations were passed, if only as an empty map
	Window time.Duration // with Known: 0 ends retention (DESIGN 3)
}

// AskedFrom reads a pod's annotations. present tells whether the runtime
// passed any; a null map counts as passed, for that is how a pod without
// annotations looks (FACTS 2.10). A missing map says nothing: what is stored
// for the pod stands.
func AskedFrom(annotations map[string]string, present bool) (Asked, error) {
	value, found := annotations[Annotation]
	if !found {
		return Asked{Known: present}, nil
	}
	window, err := ParseWindow(value)
	if err != nil {
		return Asked{}, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return Asked{Known: true, Window: window}, nil
}

// maxQuoted is how many bytes of a user's word an error text repeats.
const maxQuoted = 64

// Quote is a user's word as it may stand in an error text or on a terminal:
// quoted, unprintable characters escaped, cut after 64 bytes.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:maxQuoted], len(s))
}
