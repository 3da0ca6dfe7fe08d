package policy

import (
	"fmt"
	"slices"
)

// PinMode is how a recreated pod is led to the node that holds its address (docs/design.md,
// "Modes").
type PinMode string

const (
	// PinNominate sets the pod's nominated node, which the scheduler uses if the pod fits there.
	PinNominate PinMode = "nominate"
	// PinRequire adds a required node affinity. The pod stays pending until it fits on the node, or
	// is evicted after --require-timeout.
	PinRequire PinMode = "require"
	// PinPrefer adds a preferred node affinity. The scheduler may choose another node because of
	// other scores.
	PinPrefer PinMode = "prefer"
	// PinNone does not change the pod.
	PinNone PinMode = "none"
)

// pinModes are the valid modes. The admission policy has the same list; testdata/pins.txt tests
// both.
var pinModes = []PinMode{PinNominate, PinRequire, PinPrefer, PinNone}

// ParsePinMode parses a pin mode. It does not trim spaces, and is case-sensitive.
func ParsePinMode(s string) (PinMode, error) {
	if m := PinMode(s); slices.Contains(pinModes, m) {
		return m, nil
	}
	return "", fmt.Errorf(`%s is not a pin mode; want "nominate", "require", "prefer" or "none"`, Quote(s))
}
