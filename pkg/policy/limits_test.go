package policy

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limits    Limits
		namespace string
		want      string // of Of
		invalid   string // words of the error
	}{
		{nil, "db", "{9223372036854775807 1 forever true false}", ""},
		{Limits{"maxHeld": "20", "maxHeldShare": "0.25", "maxWindow": "24h", "forever": "false"}, "db",
			"{20 0.25 24h0m0s false false}", ""},
		{Limits{"maxHeld": "20", "db.maxHeld": "0", "db.forever": "false"}, "db",
			"{0 1 forever false false}", ""},
		{Limits{"maxHeld": "20", "db.maxHeld": "0"}, "web", "{20 1 forever true false}", ""},
		{Limits{"db.maxWindow": "10"}, "db", "{9223372036854775807 1 10m0s true false}", ""},
		{Limits{"db.choose": "true"}, "db", "{9223372036854775807 1 forever true true}", ""},
		{Limits{"choose": "yes"}, "db", "{9223372036854775807 1 forever true false}", `choose: "yes"`},
		{Limits{"maxHeld": "-1"}, "db", "{9223372036854775807 1 forever true false}", `maxHeld: "-1"`},
		{Limits{"db.maxHeldShare": "2"}, "db", "{9223372036854775807 1 forever true false}",
			`maxHeldShare: "2"`},
		{Limits{"forever": "no"}, "db", "{9223372036854775807 1 forever true false}", `forever: "no"`},
		{Limits{"maxWindow": "soon"}, "db", "{9223372036854775807 1 forever true false}", `"soon"`},
		{Limits{"maxheld": "1"}, "db", "{9223372036854775807 1 forever true false}",
			`"maxheld" is not a limit; want maxHeld,`},
	} {
		check.Equal(t, fmt.Sprint(c.limits.Of(c.namespace)), c.want, c.limits, "of", c.namespace)
		err := c.limits.Validate()
		check.Error(t, err, c.invalid, c.limits)
	}
}

func TestLimitedWindow(t *testing.T) {
	for _, c := range []struct {
		limits     Limits
		window     time.Duration
		want       time.Duration
		wantReason string
	}{
		{nil, time.Duration(lease.Forever), time.Duration(lease.Forever), ""},
		{Limits{"maxWindow": "1h"}, time.Hour, time.Hour, ""},
		{Limits{"maxWindow": "1h"}, time.Duration(lease.Forever), time.Hour,
			"the window of forever is cut to 1h0m0s, the limit of namespace db"},
		{Limits{"maxWindow": "1h", "forever": "false"}, time.Duration(lease.Forever), time.Hour,
			"the window of forever is cut to 1h0m0s, the limit of namespace db"},
		{Limits{"forever": "false"}, time.Duration(lease.Forever), 0,
			"the window of forever is cut to 0s, the limit of namespace db"},
		{Limits{"forever": "false"}, 24 * time.Hour, 24 * time.Hour, ""},
	} {
		got, reason := c.limits.Of("db").Window(lease.Window(c.window), "db")
		check.Equal(t, got, lease.Window(c.want), c.limits, c.window)
		check.Equal(t, reason, c.wantReason, c.limits, c.window)
	}
}

// FuzzLimits verifies that limits that Validate accepts are in their ranges, and that no others
// change what a namespace may have.
func FuzzLimits(f *testing.F) {
	f.Add("maxHeld", "20", "db")
	f.Add("db.maxHeldShare", "0.25", "db")
	f.Add("a.b.forever", "false", "a.b")
	f.Add("maxWindow", "24h", "")
	f.Add("maxHeldShare", "NaN", "db")
	f.Fuzz(func(t *testing.T, key, value, namespace string) {
		limits := Limits{key: value}
		of, invalid := limits.Of(namespace), limits.Validate()
		if of.MaxHeld < 0 || !(of.MaxHeldShare >= 0 && of.MaxHeldShare <= 1) || of.MaxWindow < 0 {
			t.Errorf("%q has %+v", limits, of)
		}
		none := Limits(nil).Of(namespace)
		if invalid != nil && of != none {
			t.Errorf("%q is invalid (%v), and has %+v", limits, invalid, of)
		}
		window, why := of.Window(lease.Forever, namespace)
		if window < 0 || window > of.MaxWindow || window == lease.Forever && !of.Forever ||
			(why == "") != (window == lease.Forever) {
			t.Errorf("%q: forever becomes %s: %q", limits, window, why)
		}
	})
}
