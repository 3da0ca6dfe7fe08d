// Package repairs checks that each finding of doctor has either a repair of an allowed form or a
// decision, and that a test has each reason.
package repairs

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/must"
)

// allowed are all forms that a repair may have, and why it can do no harm. What is added here is
// run by people who have not read why it is printed.
var allowed = map[string]string{
	`leasectl install --conf=\S+ --cni-bin-dir=\S+ --yes`: "one word in a file; refused without the plugin, " +
		"and where a plugin may call host-local only",
	`leasectl install --conf=\S+ --pod-annotations --yes`:                         "a key that plugins ignore",
	`leasectl recover( --data-dir=\S+)?( --network=\S+)?`:                         "what the next ADD does by itself",
	`kubectl -n \S+ rollout restart (daemonset/\S+-agent|deployment/\S+-manager)`: "nothing waits for their pods",
	`kubectl -n \S+ delete pod leasehold-agent-\S+`:                               "its DaemonSet creates it again",
}

// check returns an error unless a finding has either something to decide or repairs of an
// allowed form.
func check(f cli.Finding) error {
	if (len(f.Repair) > 0) == (f.Decide != "") {
		return fmt.Errorf("%s has not either a repair or a decision: %+v", f.Reason, f)
	}
	for _, line := range f.Repair {
		isAllowed := slices.ContainsFunc(slices.Collect(maps.Keys(allowed)), func(form string) bool {
			return regexp.MustCompile("^" + form + "$").MatchString(line)
		})
		if !isAllowed {
			return fmt.Errorf("%s has a repair of another form: %s", f.Reason, line)
		}
	}
	return nil
}

// Find returns what the first group of a regular expression matches in the sources of a package.
func Find(t *testing.T, dir, expression string) (all []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must.Succeed(t, err)
	for _, path := range paths {
		text := must.Read(t, path)
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(string(text), -1) {
			all = append(all, match[1])
		}
	}
	return all
}

// Check checks findings. Then it checks that they have each reason that the sources of the
// package in the working directory name, and the other reasons.
func Check(t *testing.T, found []cli.Finding, others ...string) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range found {
		seen[f.Reason] = true
		if err := check(f); err != nil {
			t.Error(err)
		}
	}
	for _, reason := range append(Find(t, ".", `(?:Reason:|Reason =|Reason, f\.What =)\s+"(\w+)"`), others...) {
		if !seen[reason] {
			t.Errorf("no finding has the reason %s: the test does not see what doctor prints for it", reason)
		}
	}
}
