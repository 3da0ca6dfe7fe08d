package policy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// OnBusy is the policy for a recreated pod whose old sandbox still runs BusyTimeout after the pod's
// first ADD was refused.
type OnBusy string

const (
	New    OnBusy = "new"    // the pod gets another address
	Refuse OnBusy = "refuse" // ADD keeps failing until the old sandbox has ended
)

// OnExhaustion is the policy for a pod that needs an address when every address of the range set is
// bound or held for the window of a pod's annotation.
type OnExhaustion string

const (
	Fail OnExhaustion = "fail" // ADD fails, as with host-local
	// Fair is the default. If the holds of one namespace have more than half of the addresses
	// of the range set, the hold of that namespace that expires first is released for a pod of
	// another namespace.
	Fair  OnExhaustion = "fair"
	Yield OnExhaustion = "yield" // the hold that expires first is released
)

// Config contains the validated policies of an ipam section.
type Config struct {
	OnBusy        OnBusy
	BusyTimeout   time.Duration // 0 to MaxWindow, counted from the first refused ADD
	OnExhaustion  OnExhaustion
	MaxWindow     lease.Window  // 0 = no limit
	MaxHeldShare  float64       // share of a range set's usable addresses in holds, 0 to 1
	CoolDown      time.Duration // 0 to MaxWindow
	DefaultWindow lease.Window  // used without annotations from the runtime; 0 to lease.Forever
	CNICacheDirs  []string      // in addition to libcni's default directories; absolute and clean
}

// Defaults returns the policies of an ipam section that sets none.
func Defaults() Config {
	return Config{
		OnBusy:       New,
		BusyTimeout:  2 * time.Minute,
		OnExhaustion: Fair,
		MaxHeldShare: 1,
		CoolDown:     2 * time.Minute,
	}
}

// DefaultDataDir is the value of dataDir if the ipam section has none, as with host-local.
const DefaultDataDir = "/var/lib/cni/networks"

// RawConfig contains the policies as they are written in the ipam section, beside the fields of
// host-local. A field that is absent, null or "" has its default.
type RawConfig struct {
	// OnBusy is what a recreated pod gets whose old sandbox outlives busyTimeout: `new` another
	// address, `refuse` none.
	OnBusy string `json:"onBusy"`
	// BusyTimeout is how long a recreated pod waits for the end of its old sandbox.
	BusyTimeout string `json:"busyTimeout"`
	// OnExhaustion is which hold ends for a new pod if the range set is exhausted. `fair`: if
	// another namespace than the pod's holds more than half of the set, that namespace's hold
	// nearest to its end; else none. `yield`: the one nearest to its end. `fail`: none.
	OnExhaustion string `json:"onExhaustion"`
	// MaxWindow is the longest window; longer ones are cut to it.
	MaxWindow string `json:"maxWindow"`
	// MaxHeldShare is the share of a range set that may be held for windows, 0 to 1.
	MaxHeldShare *float64 `json:"maxHeldShare"`
	// CoolDown is the cool-down of addresses without a window.
	CoolDown string `json:"coolDown"`
	// DefaultWindow is the window of pods if the runtime passes no annotations and no agent runs.
	DefaultWindow string `json:"defaultWindow"`
	// CNICacheDirs are directories of libcni's cached results, beside the usual ones.
	CNICacheDirs []string `json:"cniCacheDirs"`
}

// Config validates the fields. Its error names every invalid field and the accepted values, for
// example `ipam.onBusy: "wait" is not known; want "new" or "refuse"`.
func (r RawConfig) Config() (Config, error) {
	c := Defaults()
	err := errors.Join(
		set("ipam.onBusy", r.OnBusy, &c.OnBusy, oneOf(`"new" or "refuse"`, New, Refuse)),
		set("ipam.busyTimeout", r.BusyTimeout, &c.BusyTimeout, parseDuration),
		set("ipam.onExhaustion", r.OnExhaustion, &c.OnExhaustion,
			oneOf(`"fail", "fair" or "yield"`, Fail, Fair, Yield)),
		set("ipam.maxWindow", r.MaxWindow, &c.MaxWindow, parseMaxWindow),
		set("ipam.coolDown", r.CoolDown, &c.CoolDown, parseDuration),
		set("ipam.defaultWindow", r.DefaultWindow, &c.DefaultWindow, ParseWindow),
		setShare(&c.MaxHeldShare, r.MaxHeldShare),
		setDirs(&c.CNICacheDirs, r.CNICacheDirs),
	)
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// set parses the text of a setting into *into. If text is empty or invalid, it does not change
// *into.
func set[T any](name, text string, into *T, parse func(string) (T, error)) error {
	if text == "" {
		return nil
	}
	v, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	*into = v
	return nil
}

// oneOf returns a parser that accepts these values. want is what its error says about them.
func oneOf[T ~string](want string, values ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(values, T(s)) {
			return T(s), nil
		}
		return "", fmt.Errorf("%s is not known; want %s", Quote(s), want)
	}
}

// parseDuration parses a Go duration from 0 to MaxWindow.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > time.Duration(MaxWindow) {
		return 0, fmt.Errorf(`%s is not accepted; want a duration such as "2m" or "90s", from "0s" to "87600h"`,
			Quote(s))
	}
	return d, nil
}

// parseMaxWindow parses the value of Config.MaxWindow. It returns 0, no limit, for "forever", and
// an error for a window of 0.
func parseMaxWindow(s string) (lease.Window, error) {
	d, err := ParseWindow(s)
	switch {
	case err != nil:
		return 0, err
	case d == 0:
		return 0,
			fmt.Errorf("%s would disable retention; set maxHeldShare to 0 for that, or omit maxWindow for no limit",
				Quote(s))
	case d == lease.Forever:
		return 0, nil
	}
	return d, nil
}

// setShare sets *into to *share. If share is nil, it does not change *into. It returns an error if
// the share is not from 0 to 1.
func setShare(into, share *float64) error {
	if share == nil {
		return nil
	}
	if !(*share >= 0 && *share <= 1) { // also rejects NaN
		return fmt.Errorf("ipam.maxHeldShare: %v is not accepted; want a share of the range set from 0 to 1", *share)
	}
	*into = *share
	return nil
}

// setDirs appends the cleaned directories to *into. It returns an error for a path that is not
// absolute or contains a NUL.
func setDirs(into *[]string, dirs []string) error {
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			return fmt.Errorf("ipam.cniCacheDirs[%d]: %s is not accepted; want an absolute path", i, Quote(dir))
		}
		*into = append(*into, filepath.Clean(dir))
	}
	return nil
}
