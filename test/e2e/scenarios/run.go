package scenarios

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
	"github.com/leasehold-cni/leasehold/test/e2e/story"
)

// label marks the namespaces of scenarios, so that a later run can remove what an earlier one left.
const label = "leasehold.dev/e2e"

// scenarioLimit is the time that one scenario has; with LONG, it has more.
const scenarioLimit = 6 * time.Minute

// Choose picks the scenarios whose names match a pattern.
func Choose(all []Scenario, pattern string) ([]Scenario, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("RUN=%s: %w", pattern, err)
	}
	var chosen []Scenario
	for _, s := range all {
		if re.MatchString(s.Name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("RUN=%s: no scenario has such a name", pattern)
	}
	return chosen, nil
}

// A runner runs scenarios on a bed.
type runner struct {
	bed     *bed.Bed
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
	watch   look.Watch
	long    bool
	width   int // of the longest name

	mu  sync.Mutex // of what follows
	out io.Writer
	// twice counts the addresses that were in two pods at once and that a scenario has answered for.
	twice int
}

// Run runs scenarios on a bed that is up, and returns an error if one did not end as it should.
func Run(ctx context.Context, out io.Writer, b *bed.Bed, chosen []Scenario, long bool) error {
	if !b.Keeps() {
		all := len(chosen)
		chosen = slices.DeleteFunc(slices.Clone(chosen), func(s Scenario) bool { return s.Ours })
		fmt.Fprintf(out, "%d of %d scenarios are about leasehold's own pods, which this cluster does not have.\n", all-len(chosen), all)
	}
	client, err := b.Client()
	if err != nil {
		return err
	}
	dynamicClient, err := b.Dynamic()
	if err != nil {
		return err
	}
	if err := removeLeftovers(ctx, client); err != nil {
		return fmt.Errorf("removing what an earlier run left: %w", err)
	}
	if err := os.RemoveAll(failedDir(b)); err != nil {
		return err
	}
	// Until the last scenario has tidied up, the nodes may be in any state.
	tidy, err := b.Borrow()
	if err != nil {
		return err
	}
	r := &runner{bed: b, client: client, dynamic: dynamicClient, out: out, long: long}
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	r.watch.Start(watchCtx, func() []string {
		var roots []string
		for _, name := range b.NodeNames() {
			if b.PID(name) != 0 {
				roots = append(roots, b.Root(name))
			}
		}
		return roots
	})
	began := time.Now()
	for _, s := range chosen {
		r.width = max(r.width, len(s.Name))
	}
	results := sideBySide(ctx, chosen, b.NodeNames(), func(s Scenario) story.Result { return r.one(ctx, s) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !slices.ContainsFunc(results, func(r story.Result) bool { return r.Untidy }) {
		if err := tidy(); err != nil {
			return err
		}
	}
	for _, result := range results { // also the ones that left nothing to look into: they are told again by these names
		if good, _ := story.Judge(result, b.Keeps()); !good {
			if err := os.MkdirAll(filepath.Join(failedDir(b), result.Scenario.Name), 0o755); err != nil {
				return err
			}
		}
	}
	twice, looks := r.watch.Found()
	fmt.Fprintf(out, "\nLooked %d times into every pod: %d addresses were in two of them at once.\n\n", looks, len(twice))
	if !story.Summarize(out, results, b.Keeps(), time.Since(began)) {
		return errors.New("not all scenarios ended as they should")
	}
	return nil
}

// print prints a line of a scenario.
func (r *runner) print(s Scenario, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%-*s  %s\n", r.width, s.Name, line)
}

func (r *runner) one(ctx context.Context, s Scenario) story.Result {
	limit := scenarioLimit
	if r.long {
		limit *= 10
	}
	ns := s.Name + "-" + suffix()
	tell := s.Run
	s.Scenario.Run = func(t *story.T) {
		w := &World{T: t, Bed: r.bed, Client: r.client, Dynamic: r.dynamic, NS: ns, Long: r.long, nodes: s.nodeNames(r.bed.NodeNames())}
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{label: s.Name}}}
		_, err := r.client.CoreV1().Namespaces().Create(t.Ctx, object, metav1.CreateOptions{})
		w.Must(err)
		w.Cleanup(func() { w.Must(r.client.CoreV1().Namespaces().Delete(w.Ctx, ns, metav1.DeleteOptions{})) })
		w.Cleanup(w.CheckStores)
		// The service account comes a moment after its namespace, and no pod is admitted without it.
		w.Eventually(30*time.Second, "a service account", func() error {
			_, err := r.client.CoreV1().ServiceAccounts(ns).Get(t.Ctx, "default", metav1.GetOptions{})
			return err
		})
		tell(w)
	}
	began := time.Now()
	print := func(line string) { r.print(s, line) }
	print("       " + s.About)
	result := story.Run(ctx, s.Scenario, limit, print, func(t *story.T, o story.Outcome) {
		if good, _ := story.Judge(story.Result{Scenario: s.Scenario, Outcome: o}, r.bed.Keeps()); good {
			return
		}
		dir := filepath.Join(failedDir(r.bed), s.Name)
		if err := r.bed.Collect(t.Ctx, dir, ns, began); err != nil {
			print(fmt.Sprintf("        collecting logs: %v", err))
		}
		print("        everything that may explain it is in " + dir)
	})
	if text := r.newTwice(); text != "" {
		result.Outcome, result.Text = story.Broken, "an address twice at the same time: "+text
	}
	return result
}

// newTwice tells of an address that was in two pods at once, the first time that it is asked.
func (r *runner) newTwice() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, _ := r.watch.Found()
	known := r.twice
	r.twice = len(found)
	return strings.Join(found[known:], "; ")
}

func failedDir(b *bed.Bed) string { return filepath.Join(b.Dir, "failed") }

// suffix makes the namespace new: addresses that an earlier run left on hold are for other pods.
func suffix() string {
	var b [3]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x", b)
}

// removeLeftovers removes the namespaces of earlier scenarios with everything in them.
func removeLeftovers(ctx context.Context, client *kubernetes.Clientset) error {
	now := int64(0)
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return err
	}
	for _, ns := range list.Items {
		if ns.DeletionTimestamp == nil {
			if err := client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		// Pods of a node that is gone for good would hold the namespace up.
		err := client.CoreV1().Pods(ns.Name).DeleteCollection(ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}
