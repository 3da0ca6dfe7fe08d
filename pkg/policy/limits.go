package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Limits contains the limits that an administrator sets for the namespaces on each node, as written
// in a ConfigMap. A key is one of the constants below, for all namespaces, or
// <namespace>.<constant> for one namespace. A limit whose key is absent does not apply.
type Limits map[string]string

// The keys of Limits.
const (
	limitHeld    = "maxHeld"      // how many addresses of a node may be held for windows
	limitShare   = "maxHeldShare" // the share of a range set that may be held for windows, 0 to 1
	limitWindow  = "maxWindow"    // longer windows are cut to this
	limitForever = "forever"      // "false": a window of "forever" is cut to maxWindow, or to 0 without maxWindow
	limitChoose  = "choose"       // "true": AddressRequests of the namespace have an effect
)

// NamespaceLimits contains the limits of one namespace. A hold keeps an address for the
// window of a pod's annotation.
type NamespaceLimits struct {
	MaxHeld      int          // addresses of the namespace in holds on a node; math.MaxInt = no limit
	MaxHeldShare float64      // share of a range set's usable addresses in its holds, 0 to 1
	MaxWindow    lease.Window // lease.Forever = no limit
	Forever      bool         // whether a window may be lease.Forever
	Choose       bool         // whether AddressRequests have an effect
}

// Of returns the limits of a namespace. It ignores invalid values.
func (l Limits) Of(namespace string) NamespaceLimits {
	out, _ := l.parse(namespace + ".")
	return out
}

// Validate returns an error that names every invalid key and value.
func (l Limits) Validate() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(l)) { // the agent logs a text once
		switch name := key[strings.LastIndexByte(key, '.')+1:]; name {
		case limitHeld, limitShare, limitWindow, limitForever, limitChoose:
			_, err := Limits{name: l[key]}.parse("")
			errs = append(errs, err)
		default:
			errs = append(errs, fmt.Errorf("%s is not a limit; want maxHeld, maxHeldShare, maxWindow, forever or "+
				`choose, also after a namespace and a dot`, Quote(key)))
		}
	}
	return errors.Join(errs...)
}

// parse returns the limits of the keys with a prefix, which is "" or a namespace and a dot. A limit
// without such a key has the value for all namespaces. If a value is invalid, parse returns an
// error together with the limits of the valid values.
func (l Limits) parse(prefix string) (NamespaceLimits, error) {
	out := NamespaceLimits{MaxHeld: math.MaxInt, MaxHeldShare: 1, MaxWindow: lease.Forever, Forever: true}
	text := func(key string) string {
		if v, own := l[prefix+key]; own {
			return v
		}
		return l[key]
	}
	err := errors.Join(
		set(limitHeld, text(limitHeld), &out.MaxHeld, func(s string) (int, error) {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 {
				return 0, fmt.Errorf("%s is not accepted; want a number of addresses, at least 0", Quote(s))
			}
			return n, nil
		}),
		set(limitShare, text(limitShare), &out.MaxHeldShare, func(s string) (float64, error) {
			f, err := strconv.ParseFloat(s, 64)
			if err != nil || !(f >= 0 && f <= 1) {
				return 0, fmt.Errorf("%s is not accepted; want a share of the range set from 0 to 1", Quote(s))
			}
			return f, nil
		}),
		set(limitWindow, text(limitWindow), &out.MaxWindow, ParseWindow),
		set(limitForever, text(limitForever), &out.Forever, parseBool),
		set(limitChoose, text(limitChoose), &out.Choose, parseBool),
	)
	return out, err
}

func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, fmt.Errorf(`%s is not accepted; want "true" or "false"`, Quote(s))
	}
	return s == "true", nil
}

// Window returns the longest window that the limits allow, at most w. why is the reason if that is
// less than w, otherwise "". If Forever is false and w is lease.Forever, the allowed window is
// MaxWindow, or 0 if MaxWindow is lease.Forever.
func (n NamespaceLimits) Window(w lease.Window, namespace string) (allowed lease.Window, why string) {
	allowed = min(w, n.MaxWindow)
	if allowed == lease.Forever && !n.Forever {
		allowed = 0
	}
	if allowed == w {
		return w, ""
	}
	return allowed, fmt.Sprintf("the window of %s is cut to %s, the limit of namespace %s", w, allowed,
		namespace)
}
