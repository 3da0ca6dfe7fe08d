package policy

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// OnBusy is what happens to a recreated pod whose predecessor outlives
// busyTimeout.
type OnBusy int

const (
	New    OnBusy = iota // it gets another address
	Refuse               // it waits on
)

func (b OnBusy) String() string { return onBusyWords[b] }

// OnExhaustion is what happens to a newcomer where only firm holds are left.
type OnExhaustion int

const (
	Fail  OnExhaustion = iota // it is refused, as by host-local
	Yield                     // the firm hold nearest to its end gives way
)

func (e OnExhaustion) String() string { return onExhaustionWords[e] }

var (
	onBusyWords       = [...]string{New: "new", Refuse: "refuse"}
	onExhaustionWords = [...]string{Fail: "fail", Yield: "yield"}
)

// Config is the policies of one ipam section, checked.
type Config struct {
	OnBusy        OnBusy
	BusyTimeout   time.Duration // 0 to MaxWindow, from the first refusal on
	OnExhaustion  OnExhaustion
	MaxWindow     time.Duration // 0 = no limit
	MaxHeldShare  float64       // of a range set's usable addresses, 0 to 1
	SoftHold      time.Duration // 0 to MaxWindow
	DefaultWindow time.Duration // where a runtime passes no annotations; 0 = none, up to lease.Forever
	Mirror        bool          // keep host-local's own files as well
	CNICacheDirs  []string      // beside libcni's usual ones; absolute and clean
}

// Defaults are the policies of an ipam section that names none.
func Defaults() Config {
	return Config{
		OnBusy:       New,
		BusyTimeout:  2 * time.Minute,
		OnExhaustion: Fail,
		MaxHeldShare: 1,
		SoftHold:     2 * time.Minute,
		Mirror:       true,
	}
}

// Words are the policies as they stand in the ipam section, beside
// host-local's keys. What is absent, null or "" keeps its default.
type Words struct {
	OnBusy        string   `json:"onBusy"`
	BusyTimeout   string   `json:"busyTimeout"`
	OnExhaustion  string   `json:"onExhaustion"`
	MaxWindow     string   `json:"maxWindow"`
	MaxHeldShare  *float64 `json:"maxHeldShare"`
	SoftHold      string   `json:"softHold"`
	DefaultWindow string   `json:"defaultWindow"`
	Mirror        *bool    `json:"mirror"`
	CNICacheDirs  []string `json:"cniCacheDirs"`
}

// Config checks the words. An error begins with the field that is wrong, as in
// "ipam.busyTimeout: ...", and says what would be accepted; all wrong fields
// are named.
func (w Words) Config() (Config, error) {
	c := Defaults()
	err := errors.Join(
		field("onBusy", w.OnBusy, &c.OnBusy, oneOf[OnBusy](onBusyWords[:])),
		field("busyTimeout", w.BusyTimeout, &c.BusyTimeout, parseSpan),
		field("onExhaustion", w.OnExhaustion, &c.OnExhaustion, oneOf[OnExhaustion](onExhaustionWords[:])),
		field("maxWindow", w.MaxWindow, &c.MaxWindow, parseLimit),
		field("softHold", w.SoftHold, &c.SoftHold, parseSpan),
		field("defaultWindow", w.DefaultWindow, &c.DefaultWindow, ParseWindow),
		setShare(&c.MaxHeldShare, w.MaxHeldShare),
		setDirs(&c.CNICacheDirs, w.CNICacheDirs),
	)
	if w.Mirror != nil {
		c.Mirror = *w.Mirror
	}
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// field parses one word into its place, and leaves the default for none.
func field[T any](name, word string, into *T, parse func(string) (T, error)) error {
	if word == "" {
		return nil
	}
	v, err := parse(word)
	if err != nil {
		return fmt.Errorf("ipam.%s: %w", name, err)
	}
	*into = v
	return nil
}

// oneOf parses a word of a list into its index.
func oneOf[T ~int](words []string) func(string) (T, error) {
	return func(s string) (T, error) {
		for i, word := range words {
			if s == word {
				return T(i), nil
			}
		}
		return 0, fmt.Errorf("%s is not known; want \"%s\"", Quote(s), strings.Join(words, `" or "`))
	}
}

// parseSpan reads how long something may take.
func parseSpan(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > MaxWindow {
		return 0, fmt.Errorf(`%s is not accepted; want a duration such as "2m" or "90s", from "0s" to "87600h"`, Quote(s))
	}
	return d, nil
}

// parseLimit reads the longest window that is granted, as Config's MaxWindow.
func parseLimit(s string) (time.Duration, error) {
	d, err := ParseWindow(s)
	switch {
	case err != nil:
		return 0, err
	case d == 0:
		return 0, fmt.Errorf("%s would forbid all retention, which maxHeldShare does; leave maxWindow out for no limit", Quote(s))
	case d == lease.Forever:
		return 0, nil
	}
	return d, nil
}

func setShare(into, share *float64) error {
	if share == nil {
		return nil
	}
	if !(*share >= 0 && *share <= 1) { // also refuses what is no number
		return fmt.Errorf("ipam.maxHeldShare: %v is not accepted; want a share of the range set from 0 to 1", *share)
	}
	*into = *share
	return nil
}

func setDirs(into *[]string, dirs []string) error {
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			return fmt.Errorf("ipam.cniCacheDirs[%d]: %s is not accepted; want an absolute path", i, Quote(dir))
		}
		*into = append(*into, filepath.Clean(dir))
	}
	return nil
}
