package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// ReserveAs is the pod annotation that keeps the addresses of a pod for a name that the pod's
// template gives, its reservation name, in place of the pod's own name. Any number of pods of a
// namespace may have the same one. It has an effect only together with a window.
const ReserveAs = "leasehold.dev/reserve-as"

// ExpectedAddresses is the pod annotation in which the webhook lists the addresses that a pod may
// take on its pinned node, separated by commas. For a pod with a reservation name, each address is
// followed by "=" and the UID of the pod that has left it or is about to. The ADD waits for the end
// of that pod, but not for another one that has the address by then.
const ExpectedAddresses = "leasehold.dev/expected-addresses"

// maxExpected is the length of ExpectedAddresses up to which it is read: some 13 IPv6 addresses.
const maxExpected = 1024

// ExpectedFrom returns an entry of ExpectedAddresses: an address, and the UID of the pod that had
// it.
func ExpectedFrom(address, podUID string) string { return address + "=" + podUID }

// Expects reports whether a, from the pod with a UID, is among the expected addresses.
func (r Request) Expects(a netip.Addr, podUID string) bool {
	return podUID != "" && slices.Contains(strings.Split(r.Expected, ","), ExpectedFrom(a.String(), podUID))
}

// ParseReserveAs parses the value of ReserveAs, an RFC 1123 label. It does not trim spaces.
func ParseReserveAs(s string) (string, error) {
	if !lease.IsReserveAs(s) {
		return "", fmt.Errorf(`%s is not a reservation name; want at most 63 lower case letters, digits and "-", `+
			`with a letter or digit at both ends`, Quote(s))
	}
	return s, nil
}
