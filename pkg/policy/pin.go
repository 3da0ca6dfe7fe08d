package policy

import (
	"fmt"
	"slices"
)

// PinMode is how a recreated pod is brought back to the node that has its address (DESIGN 7).
type PinMode string

const (
	// PinNominate suggests the node to the scheduler, which takes it if the pod fits there.
	PinNominate PinMode = "nominate"
	// PinRequire has the pod wait for the node.
	PinRequire PinMode = "require"
	// PinPrefer gives the node points, which may lose to others.
	PinPrefer PinMode = "prefer"
	// PinNone leaves the pod alone.
	PinNone PinMode = "none"
)

// pinModes is the expression of the admission policy as well; testdata/pins.txt tests both.
var pinModes = []PinMode{PinNominate, PinRequire, PinPrefer, PinNone}

// ParsePinMode reads a mode. Nothing is trimmed and case counts.
func ParsePinMode(s string) (PinMode, error) {
	if m := PinMode(s); slices.Contains(pinModes, m) {
		return m, nil
	}
	return "", fmt.Errorf(`%s is not a pin mode; want "nominate", "require", "prefer" or "none"`, Quote(s))
}
