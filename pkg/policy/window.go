package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Annotation is the pod annotation that requests retention. Its value is the window: how long after
// the pod's deletion the pod's address is reserved for a pod of the same name.
const Annotation = "io.kubernetes.cri/reserved-ip-duration"

// The forms of a window, as regular expressions in the syntax that Go and CEL have in common. The
// admission policy uses the same expressions; testdata/windows.txt tests both.
const (
	minutesPattern  = `^(0|[1-9][0-9]{0,8})$`
	durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
)

// MaxWindow is the longest window except "forever": ten years of 365 days.
const MaxWindow = lease.Window(10 * 365 * 24 * time.Hour)

// windowForms describes the accepted windows, at the end of each error about a window.
const windowForms = `want whole minutes ("10"), a duration ("90s", "24h"), "forever", or "0" for no retention; ` +
	`at most 10 years ("87600h")`

// durationRE is compiled at the first use, so that a plugin call without a duration does not pay
// for it.
var durationRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(durationPattern) })

// ParseWindow parses the value of the annotation: whole minutes, a Go duration without a sign, or
// "forever". It returns lease.Forever for "forever", and otherwise a window from 0, which requests
// no retention, to MaxWindow. It does not trim spaces and returns an error for an empty string, so
// that the admission policy can apply the same rules (docs/design.md, "The annotation").
func ParseWindow(s string) (lease.Window, error) {
	d, err := parseWindow(s)
	if err != nil {
		return 0, fmt.Errorf("%s %w; %s", Quote(s), err, windowForms)
	}
	return d, nil
}

// parseWindow is ParseWindow with errors that do not contain s.
func parseWindow(s string) (lease.Window, error) {
	var d time.Duration
	n, err := strconv.Atoi(s)
	switch {
	case s == lease.Forever.String():
		return lease.Forever, nil
	case err == nil && n >= 0 && strconv.Itoa(n) == s && len(s) <= 9: // as minutesPattern
		if n > int(time.Duration(MaxWindow)/time.Minute) {
			return 0, errTooLong
		}
		d = time.Duration(n) * time.Minute
	case durationRE().MatchString(s):
		if d, err = time.ParseDuration(s); err != nil {
			return 0, errTooLong // the form is valid, so the value overflows
		}
	default:
		return 0, errors.New("is not a window")
	}
	if lease.Window(d) > MaxWindow {
		return 0, errTooLong
	}
	return lease.Window(d), nil
}

var errTooLong = errors.New("is too long")

// Request is the retention that a pod's annotations request.
type Request struct {
	Known  bool         // the runtime passed annotations, possibly an empty map
	Window lease.Window // valid if Known; 0 ends retention
	// ReserveAs is the pod's reservation name; "" without one, and if Window is 0.
	ReserveAs string
	// Expected is the value of ExpectedAddresses, if ReserveAs is not "" and it is not too long.
	Expected string
}

// ParseAnnotations reads what a pod requests from its annotations, as a runtime passes them. raw is
// nil if the runtime passes none: then the Request is not Known, and what is stored for the pod
// stays in effect. containerd passes null for a pod without annotations (docs/facts.md, "Pod
// annotations arrive as a capability, and may be null"). Other annotations may have any JSON type.
func ParseAnnotations(raw json.RawMessage) (Request, error) {
	if raw == nil {
		return Request{}, nil
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return Request{}, fmt.Errorf("annotations: want an object, not %s", Quote(string(raw)))
	}
	texts := map[string]string{}
	for _, name := range []string{Annotation, ReserveAs, ExpectedAddresses} {
		value, found := all[name]
		if !found {
			break // none has an effect without the one before it
		}
		var text *string
		if json.Unmarshal(value, &text) != nil || text == nil {
			return Request{}, fmt.Errorf("annotation %s: want a string, not %s", name, Quote(string(value)))
		}
		texts[name] = *text
	}
	return RequestFrom(texts)
}

// RequestFrom reads what a pod requests from its annotations. The window is 0 if the annotation is
// missing. RequestFrom returns an error if an annotation is invalid.
func RequestFrom(annotations map[string]string) (Request, error) {
	value, found := annotations[Annotation]
	if !found {
		return Request{Known: true}, nil
	}
	window, err := ParseWindow(value)
	if err != nil {
		return Request{}, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	request := Request{Known: true, Window: window}
	if name, named := annotations[ReserveAs]; named && window > 0 {
		if request.ReserveAs, err = ParseReserveAs(name); err != nil {
			return Request{}, fmt.Errorf("annotation %s: %w", ReserveAs, err)
		}
		if expected := annotations[ExpectedAddresses]; len(expected) <= maxExpected {
			request.Expected = expected
		}
	}
	return request, nil
}

// maxQuoted is the largest number of bytes of a user's text that an error contains.
const maxQuoted = 64

// Quote returns s in a form that is safe in an error and on a terminal: quoted, with unprintable
// characters escaped. If s is longer than maxQuoted bytes, Quote truncates it and appends its
// length.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:maxQuoted], len(s))
}
