package policy

import (
	"fmt"
	"slices"
)

// PinMode says how a recreated pod is brought back to the node that has its address
// (docs/design.md, "Modes").
type PinMode string

const (
	// PinNominate suggests the node to the scheduler, which takes it if the pod fits there.
	PinNominate PinMode = "nominate"
	// PinRequire requires the node: the pod stays pending until it fits there.
	PinRequire PinMode = "require"
	// PinPrefer adds a preferred node affinity, which may lose to other scores.
	PinPrefer PinMode = "prefer"
	// PinNone does not change the pod.
	PinNone PinMode = "none"
)

// The admission policy has the same list; testdata/pins.txt tests both.
var pinModes = []PinMode{PinNominate, PinRequire, PinPrefer, PinNone}

// ParsePinMode parses a mode. It trims nothing and is case-sensitive.
func ParsePinMode(s string) (PinMode, error) {
	if m := PinMode(s); slices.Contains(pinModes, m) {
		return m, nil
	}
	return "", fmt.Errorf(`%s is not a pin mode; want "nominate", "require", "prefer" or "none"`, Quote(s))
}
