package soak

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

// samples returns a series of two hours, one sample each 30 s.
func samples(value func(minute float64) float64) (p Points) {
	for i := range 240 {
		at := time.Duration(i) * 30 * time.Second
		p = append(p, Point{at, value(at.Minutes())})
	}
	return p
}

func TestJudge(t *testing.T) {
	const mib = 1 << 20
	dice := rand.New(rand.NewPCG(1, 2))
	start := func(minute float64) float64 { return 20*mib + 5*mib*min(minute/15, 1) }
	tests := []struct {
		name  string
		rule  Rule
		value func(minute float64) float64
		want  verdict // grows by default
	}{
		{name: "constant", value: func(float64) float64 { return 47 }, want: ok},
		{name: "none", value: func(float64) float64 { return 0 }, want: ok},
		{name: "grows while it starts", value: start, want: ok},
		{name: "varies", value: func(m float64) float64 { return start(m) + 5*mib*dice.Float64() }, want: ok},
		{name: "one peak at the end", want: ok, value: func(m float64) float64 {
			if m > 118 {
				return 100 * mib
			}
			return start(m)
		}},
		{name: "leaks 5 MiB an hour", value: func(m float64) float64 { return start(m) + 5*mib*m/60 }},
		{name: "leaks 5 MiB an hour and is restarted early", value: func(m float64) float64 {
			if m < 10 {
				return 40 * mib
			}
			return start(m-10) + 5*mib*(m-10)/60
		}},
		{name: "one more with each sample", value: func(m float64) float64 { return 2 * m }},
		{name: "slack", rule: Rule{Slack: 2},
			value: func(m float64) float64 { return 3 + float64(int(m/60)) }, want: ok},
		{name: "more than the slack", rule: Rule{Slack: 0.5},
			value: func(m float64) float64 { return 3 + float64(int(m/60)) }},
		{name: "within its limit", rule: Rule{Limit: 4160}, value: func(m float64) float64 { return 30 * m }, want: ok},
		{name: "over its limit once", rule: Rule{Limit: 4160}, value: func(m float64) float64 {
			if m == 7 {
				return 4161
			}
			return 4160
		}},
		{name: "settles after an hour", rule: Rule{Growth: 0.1, Settles: 65 * time.Minute},
			value: func(m float64) float64 { return min(m, 60) }, want: ok},
		{name: "does not settle", rule: Rule{Growth: 0.1, Settles: 65 * time.Minute},
			value: func(m float64) float64 { return m }},
		{name: "would settle after two hours", rule: Rule{Growth: 0.1, Settles: 2 * time.Hour},
			value: func(m float64) float64 { return m }, want: open},
	}
	for _, tt := range tests {
		rule := tt.rule
		if rule == (Rule{}) {
			rule = Rule{Growth: 0.1, Slack: 2}
		}
		if tt.want == "" {
			tt.want = grows
		}
		if got, first, last := rule.judge(samples(tt.value), 2*time.Hour); got != tt.want {
			t.Errorf("%s: the medians are %v and %v: %s, want %s", tt.name, first, last, got, tt.want)
		}
	}
	short := samples(start)[:100]
	if got, _, _ := (Rule{Growth: 0.1}).judge(short, 2*time.Hour); got != open {
		t.Errorf("the samples end early: %s", got)
	}
	if bad := Judge(io.Discard, Samples{}, []Rule{{Name: "x"}}); len(bad) != 1 {
		t.Errorf("without samples: %q", bad)
	}
}
