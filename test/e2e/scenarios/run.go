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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Run runs scenarios on a bed that is up, and returns an error if one did not end as it should.
func Run(ctx context.Context, out io.Writer, b *bed.Bed, chosen []Scenario, long bool) error {
	client, err := b.Client()
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
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	watch := &look.Watch{}
	watch.Start(watchCtx, func() []string {
		var roots []string
		for _, name := range b.NodeNames() {
			if b.PID(name) != 0 {
				roots = append(roots, b.Root(name))
			}
		}
		return roots
	})

	var results []story.Result
	for _, s := range chosen {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Fprintf(out, "\n%s: %s\n", s.Name, s.About)
		known, _ := watch.Found()
		r := one(ctx, out, b, client, s, long)
		if found, _ := watch.Found(); len(found) > len(known) {
			r.Outcome, r.Text = story.Broken, "an address twice at the same time: "+found[len(known)]
		}
		results = append(results, r)
	}
	if !slices.ContainsFunc(results, func(r story.Result) bool { return r.Untidy }) {
		if err := tidy(); err != nil {
			return err
		}
	}
	twice, looks := watch.Found()
	fmt.Fprintf(out, "\nLooked %d times into every pod: %d addresses were in two of them at once.\n\n", looks, len(twice))
	if !story.Summarize(out, results, b.Keeps()) {
		return errors.New("not all scenarios ended as they should")
	}
	return nil
}

func one(ctx context.Context, out io.Writer, b *bed.Bed, client *kubernetes.Clientset, s Scenario, long bool) story.Result {
	limit := scenarioLimit
	if long {
		limit *= 10
	}
	ns := s.Name + "-" + suffix()
	s.Scenario.Run = func(t *story.T) {
		w := &World{T: t, Bed: b, Client: client, NS: ns, Long: long}
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{label: s.Name}}}
		_, err := client.CoreV1().Namespaces().Create(t.Ctx, object, metav1.CreateOptions{})
		w.Must(err)
		w.Cleanup(func() { w.Must(client.CoreV1().Namespaces().Delete(w.Ctx, ns, metav1.DeleteOptions{})) })
		w.Cleanup(w.CheckStores)
		// The service account comes a moment after its namespace, and no pod is admitted without it.
		w.Eventually(30*time.Second, "a service account", func() error {
			_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Ctx, "default", metav1.GetOptions{})
			return err
		})
		s.Run(w)
	}
	began := time.Now()
	print := func(line string) { fmt.Fprintln(out, line) }
	return story.Run(ctx, s.Scenario, limit, print, func(t *story.T, o story.Outcome) {
		if good, _ := story.Judge(story.Result{Scenario: s.Scenario, Outcome: o}, b.Keeps()); good {
			return
		}
		dir := filepath.Join(failedDir(b), s.Name)
		if err := b.Collect(t.Ctx, dir, ns, began); err != nil {
			print(fmt.Sprintf("          collecting logs: %v", err))
		}
		print("          everything that may explain it is in " + dir)
	})
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
