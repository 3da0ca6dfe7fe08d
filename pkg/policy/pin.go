package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// PinMode is how a recreated pod is led to the node that holds its address (docs/design.md,
// "Modes").
type PinMode string

const (
	// PinRequire adds a required node affinity. A pod that its node does not accept is replaced
	// when its patience is over.
	PinRequire PinMode = "require"
	// PinPrefer adds a preferred node affinity. The scheduler may choose another node because of
	// other scores.
	PinPrefer PinMode = "prefer"
	// PinNone does not change the pod.
	PinNone PinMode = "none"
)

// pinModes are the accepted modes. The admission policy has the same list; testdata/pins.txt tests
// both.
var pinModes = []PinMode{PinRequire, PinPrefer, PinNone}

// ParsePinMode parses a pin mode. It does not trim spaces, and is case-sensitive.
func ParsePinMode(s string) (PinMode, error) {
	if m := PinMode(s); slices.Contains(pinModes, m) {
		return m, nil
	}
	return "", fmt.Errorf(`%s is not a pin mode; want "require", "prefer" or "none"`, Quote(s))
}

// DefaultPatience is the patience of a pod for which neither its annotation nor its namespace sets
// one.
const DefaultPatience = lease.Window(5 * time.Second)

// ParsePatience parses how long a pinned pod waits for its node. The accepted forms are those of a
// window; lease.Forever means that the pod is never replaced.
func ParsePatience(s string) (lease.Window, error) {
	d, err := parseWindow(s)
	if err != nil {
		return 0, fmt.Errorf(`%s is not a patience; want a duration ("5s", "2m"), whole minutes ("10") or "forever"`,
			Quote(s))
	}
	return d, nil
}
