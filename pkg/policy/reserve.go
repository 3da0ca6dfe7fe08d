package policy

import (
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// ReserveAs is the pod annotation that keeps the addresses of a pod for a name that the pod's
// template gives, its reservation name, in place of the pod's own name. Any number of pods of a
// namespace may have the same one. It has an effect only together with a window (Annotation).
const ReserveAs = "leasehold.dev/reserve-as"

// ParseReservation parses the value of ReserveAs, an RFC 1123 label. It does not trim spaces.
func ParseReservation(s string) (string, error) {
	if !lease.IsReservation(s) {
		return "", fmt.Errorf(`%s is not a reservation name; want at most 63 lower case letters, digits and "-", `+
			`with a letter or digit at both ends`, Quote(s))
	}
	return s, nil
}
