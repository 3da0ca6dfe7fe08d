package explore

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// podConfigs and rangeSets are what testdata/models.yaml calls by these names.
var (
	podConfigs = map[string]podConfig{
		"retained": {window: window}, "plain": {}, "oneUID": {oneUID: true},
		"agentOnly": {window: window, agentOnly: true},
		"named":     {window: window, reserveAs: "name"},
		"lateNamed": {window: window, reserveAs: "name", agentOnly: true},
	}
	rangeSets = map[string]string{
		"oneAddress": "10.0.0.0/24 10.0.0.2-10.0.0.2", "twoAddresses": "10.0.0.0/24 10.0.0.2-10.0.0.3",
		"fourAddresses": "10.0.0.0/24 10.0.0.2-10.0.0.5", "two6": "fd00::/64 fd00::2-fd00::3",
	}
)

// models are the models that are searched.
var models = readModels()

func readModels() (out []config) {
	data, err := os.ReadFile("testdata/models.yaml")
	must(err)
	var all []struct {
		Name, With     string
		Pods, Sets     []string
		PerPod         int
		Known, Imports bool
		CoolDown       metav1.Duration
		Share          float64
		Kills, Short   int
	}
	must(yaml.UnmarshalStrict(data, &all))
	for _, m := range all {
		c := config{name: m.Name, perPod: m.PerPod, known: m.Known, imports: m.Imports, share: m.Share, kills: m.Kills,
			coolDown: m.CoolDown.Duration, short: m.Short, with: map[kind]int{}}
		c.pods, c.sets = named(podConfigs, m.Pods), named(rangeSets, m.Sets)
		for _, word := range strings.Fields(strings.Replace(m.With, "common", "add del late-add end pass agent", 1)) {
			name, times, isLimited := strings.Cut(word, "=")
			k, n := kind(strings.ReplaceAll(name, "-", " ")), always
			if isLimited {
				n, err = strconv.Atoi(times)
				must(err)
			}
			if !slices.Contains(kinds[:], k) {
				panic("no such event: " + name)
			}
			c.with[k] = n
		}
		out = append(out, c)
	}
	return out
}

// named returns the values with the names.
func named[V any](values map[string]V, names []string) (out []V) {
	for _, name := range names {
		value, found := values[name]
		if !found {
			panic("nothing is named " + name)
		}
		out = append(out, value)
	}
	return out
}

// bound limits a search. The short form goes to a depth; the long one has no limit but LIMIT, a
// duration for each model.
func bound(t *testing.T, c *config) {
	if os.Getenv("LONG") == "" {
		c.limits.depth = c.short
		return
	}
	if text := os.Getenv("LIMIT"); text != "" {
		var err error
		if c.limits.time, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
}

// TestModels searches the models, and shows that each event happens in one of them.
func TestModels(t *testing.T) {
	var mu sync.Mutex
	rows, taken := []string{heading}, map[kind]bool{}
	t.Run("models", func(t *testing.T) { // which ends when all of them have ended
		for _, c := range models {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				bound(t, &c)
				s := newSearch(t, c)
				s.progress = func(row string) { t.Log(row) }
				s.run()
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, s.row())
				maps.Copy(taken, s.taken)
				if s.failure != nil {
					t.Error(s.counterExample(s.failurePath(), s.failure.why))
				}
			})
		}
	})
	t.Log("\n" + strings.Join(rows, "\n"))
	for _, k := range kinds {
		if len(rows) > len(models) && !taken[k] {
			t.Errorf("%q happens in no model", k)
		}
	}
}
