package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// limited returns a quota of 10 ms in 100 ms, of a process that uses used.
func limited(used *time.Duration) *Quota {
	return &Quota{
		limit: func() (quota, period time.Duration) { return 10 * ms, 100 * ms },
		used:  func() time.Duration { return *used },
		now:   time.Now,
	}
}

func TestTheLockIsTakenWithEnoughQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used := time.Duration(0)
		q := limited(&used)
		waits := func() time.Duration {
			began := time.Now()
			if !q.Wait(t.Context()) {
				t.Error("waited for too long")
			}
			return time.Since(began)
		}
		if took := waits(); took < 100*ms || took > 125*ms {
			t.Errorf("what it has used before is not known: waited for %s, want a period", took)
		}
		if took := waits(); took != 0 {
			t.Errorf("nothing is used: waited for %s", took)
		}
		used += 5 * ms
		if took := waits(); took != 0 {
			t.Errorf("half of it is used: waited for %s", took)
		}
		used += ms
		if q.Over() {
			t.Error("more than half of it is used, and it may take the lock")
		}
		if took := waits(); took < 80*ms || took > 125*ms {
			t.Errorf("more than half of it is used: waited for %s, want until that is a period ago", took)
		}
		time.Sleep(10 * time.Second)
		used += 7 * ms
		if took := waits(); took < 80*ms || took > 125*ms {
			t.Errorf("it was idle, and has used most of it now: waited for %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		used += 9 * ms
		if q.Wait(ctx) {
			t.Error("there is enough in spite of what was used, or it waits for longer than it may")
		}
		for range 10_000 {
			q.Over()
		}
		if len(q.samples) > 20 {
			t.Errorf("%d samples are kept", len(q.samples))
		}
	})
}

func TestTheLockIsTakenAfterTheLongestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used := time.Duration(0)
		q := limited(&used)
		q.used = func() time.Duration { used += ms; return used } // whenever it is asked
		began := time.Now()
		if q.Wait(t.Context()) || time.Since(began) < longestPause || time.Since(began) > longestPause+20*ms {
			t.Errorf("waited for %s", time.Since(began))
		}
	})
}

func TestWithoutALimitNothingWaits(t *testing.T) {
	for _, limit := range []time.Duration{0, 100 * ms, 400 * ms} {
		q := &Quota{
			limit: func() (quota, period time.Duration) { return limit, 100 * ms },
			used:  func() time.Duration { t.Error("asks for the processor time"); return 0 },
			now:   time.Now,
		}
		if !q.Over() {
			t.Errorf("%s in 100 ms is a limit", limit)
		}
	}
}

func TestTheLimitOfACgroup(t *testing.T) {
	const none = time.Duration(0)
	for name, tc := range map[string]struct {
		self          string
		files         map[string]string
		quota, period time.Duration
	}{
		"version 2": {"0::/pod/agent\n", map[string]string{"pod/agent/cpu.max": "10000 100000\n"},
			10 * ms, 100 * ms},
		"version 2, in its own namespace": {"0::/\n", map[string]string{"cpu.max": "5000 50000\n"}, 5 * ms, 50 * ms},
		"version 2, the hierarchy begins with it": {"0::/pod/agent\n", map[string]string{"cpu.max": "20000 100000\n"},
			20 * ms, 100 * ms},
		"version 2, without a limit": {"0::/\n", map[string]string{"cpu.max": "max 100000\n"}, none, none},
		"version 1": {"3:memory:/x\n2:cpu,cpuacct:/pod/agent\n1:name=systemd:/\n", map[string]string{
			"cpu/pod/agent/cpu.cfs_quota_us": "10000\n", "cpu/pod/agent/cpu.cfs_period_us": "100000\n"},
			10 * ms, 100 * ms},
		"version 1, the hierarchy begins with it": {"2:cpu:/pod/agent\n", map[string]string{
			"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 30 * ms, 100 * ms},
		"version 1, without a limit": {"2:cpu:/\n", map[string]string{
			"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, none, none},
		"both versions": {"2:cpu:/\n0::/\n", map[string]string{
			"cpu/cpu.cfs_quota_us": "10000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 10 * ms, 100 * ms},
		"nothing mounted": {"0::/\n", nil, none, none},
		"damaged":         {"0::/\n", map[string]string{"cpu.max": "many few\n"}, none, none},
	} {
		dir := t.TempDir()
		self := filepath.Join(dir, "self")
		if err := os.WriteFile(self, []byte(tc.self), 0o600); err != nil {
			t.Fatal(err)
		}
		for path, content := range tc.files {
			path = filepath.Join(dir, "cgroup", path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		limit := cgroupLimit(filepath.Join(dir, "cgroup"), self)
		if quota, period := limit(); quota != tc.quota || period != tc.period {
			t.Errorf("%s: %s in %s, want %s in %s", name, quota, period, tc.quota, tc.period)
		}
		if name != "version 2" {
			continue
		}
		// The limit is changed while the agent runs, from whose root the file cannot be reached.
		file := filepath.Join(dir, "cgroup/pod/agent/cpu.max")
		if err := os.WriteFile(file, []byte("max 100000\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if quota, _ := limit(); quota != 0 {
			t.Errorf("the limit is still %s", quota)
		}
	}
	if quota, _ := cgroupLimit("/", filepath.Join(t.TempDir(), "missing"))(); quota != 0 {
		t.Errorf("a limit of %s without a file", quota)
	}
	before := processorTime()
	until(t, "it has used processor time", func() bool { return processorTime() > before })
}
