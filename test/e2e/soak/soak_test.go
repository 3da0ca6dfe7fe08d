package soak

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// samples returns a series of two hours, one sample each 30 s.
func samples(name string, value func(minute float64) float64) Series {
	s := Series{Where: "node1", Name: name}
	for i := range 240 {
		at := time.Duration(i) * 30 * time.Second
		s.Points = append(s.Points, Point{at, value(at.Minutes())})
	}
	return s
}

func TestJudge(t *testing.T) {
	const mib = 1 << 20
	dice := rand.New(rand.NewPCG(1, 2))
	start := func(minute float64) float64 { return 20*mib + 5*mib*min(minute/15, 1) }
	tests := []struct {
		name     string
		rule     Rule
		value    func(minute float64) float64
		ok, open bool
	}{
		{name: "constant", value: func(float64) float64 { return 47 }, ok: true},
		{name: "none", value: func(float64) float64 { return 0 }, ok: true},
		{name: "grows while it starts", value: start, ok: true},
		{name: "varies", value: func(m float64) float64 { return start(m) + 5*mib*dice.Float64() }, ok: true},
		{name: "one peak at the end", ok: true, value: func(m float64) float64 {
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
			value: func(m float64) float64 { return 3 + float64(int(m/60)) }, ok: true},
		{name: "more than the slack", rule: Rule{Slack: 0.5},
			value: func(m float64) float64 { return 3 + float64(int(m/60)) }},
		{name: "within its limit", rule: Rule{Limit: 4160}, value: func(m float64) float64 { return 30 * m }, ok: true},
		{name: "over its limit once", rule: Rule{Limit: 4160}, value: func(m float64) float64 {
			if m == 7 {
				return 4161
			}
			return 4160
		}},
		{name: "settles after an hour", rule: Rule{Growth: 0.1, Settles: 65 * time.Minute},
			value: func(m float64) float64 { return min(m, 60) }, ok: true},
		{name: "does not settle", rule: Rule{Growth: 0.1, Settles: 65 * time.Minute},
			value: func(m float64) float64 { return m }},
		{name: "would settle after two hours", rule: Rule{Growth: 0.1, Settles: 2 * time.Hour},
			value: func(m float64) float64 { return m }, open: true},
	}
	for _, tt := range tests {
		rule := tt.rule
		if rule == (Rule{}) {
			rule = Rule{Growth: 0.1, Slack: 2}
		}
		rule.Name = "x"
		got, err := Judge([]Series{samples("x", tt.value)}, []Rule{rule})
		if err != nil {
			t.Fatal(err)
		}
		if v := got[0]; v.OK != tt.ok || v.Open != tt.open {
			t.Errorf("%s: the medians are %v and %v: ok %v, open %v; want %v, %v",
				tt.name, v.First, v.Last, v.OK, v.Open, tt.ok, tt.open)
		}
	}
}

// TestJudgeNeedsSamples checks that a series that was not sampled is not taken for one that does
// not grow.
func TestJudgeNeedsSamples(t *testing.T) {
	one := func(float64) float64 { return 1 }
	_, err := Judge([]Series{samples("x", one)}, []Rule{{Name: "x"}, {Name: "y"}})
	if err == nil || !strings.Contains(err.Error(), "no samples of y") {
		t.Errorf("error %v", err)
	}
	early := samples("x", one)
	early.Points = early.Points[:100]
	got, err := Judge([]Series{early, samples("z", one)}, []Rule{{Name: "x"}})
	if err != nil || !got[0].Open || got[0].OK {
		t.Errorf("the samples of x end early: %+v, error %v", got, err)
	}
	if _, err := Judge(nil, nil); err == nil {
		t.Error("a run without samples has no error")
	}
}

func TestRead(t *testing.T) {
	got, err := Read(strings.NewReader("seconds,where,series,value\n" +
		"0,node2,held,3\n0,node1,held,1\n0,node1,agent_fds,9\n30,node1,held,1.5\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := "[{node1 agent_fds [{0s 9}]} {node1 held [{0s 1} {30s 1.5}]} {node2 held [{0s 3}]}]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	const title = "seconds,where,series,value\n"
	for _, bad := range []string{"", title + "0,node1,held\n", title + "x,node1,held,1\n", title + "0,node1,held,x\n"} {
		if _, err := Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%q has no error", bad)
		}
	}
}

// TestTable checks that a series that grows is visible in the table.
func TestTable(t *testing.T) {
	verdicts, err := Judge([]Series{samples("x", func(m float64) float64 { return m * mib }),
		samples("y", func(float64) float64 { return 2 * kib })},
		[]Rule{{Name: "x", Unit: "MiB"}, {Name: "y", Unit: "KiB"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Table(&out, verdicts); err != nil {
		t.Fatal(err)
	}
	want := `SERIES  WHERE  FIRST  LAST   MAX    UNIT  VERDICT
x       node1  44.75  104.8  119.5  MiB   GROWS
y       node1  2      2      2      KiB   ok
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
