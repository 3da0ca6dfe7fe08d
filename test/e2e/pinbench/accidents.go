package pinbench

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// accidents measures leasehold's requests through each accident.
func (r *costRun) accidents(ctx context.Context) error {
	for _, accident := range []struct {
		name string
		run  func(context.Context) (about string, err error)
		// loaded is whether pods are recreated meanwhile.
		loaded     bool
		afterwards time.Duration // for which the requests are counted
	}{
		{"zone", r.zoneOutage, true, afterwards},
		{"manager", r.managerRestart, true, afterwards},
		{"outage", r.apiOutage, false, afterOutage},
		{"upgrade", r.upgrade, false, afterwards},
		{"start", r.startAll, false, afterwards},
	} {
		if !slices.Contains(r.options.Accidents, accident.name) {
			continue
		}
		if err := r.accident(ctx, accident.name, accident.run, accident.loaded, accident.afterwards); err != nil {
			return fmt.Errorf("%s: %w", accident.name, err)
		}
	}
	return nil
}

// accident measures one accident, after a time in which nothing happens. If loaded is true, pods
// are recreated in all of that time.
func (r *costRun) accident(ctx context.Context, name string, happen func(context.Context) (string, error),
	loaded bool, afterwards time.Duration) error {
	starting, end := context.WithCancel(ctx)
	defer end()
	load := make(chan struct{})
	var n numbers
	var failed error
	go func() {
		defer close(load)
		if loaded {
			n, failed = r.recreations(ctx, starting, retained, 1<<20)
		}
	}()
	if err := pause(ctx, 5*time.Second); err != nil { // for the first pods to run
		return err
	}
	offset, err := r.auditSize()
	if err != nil {
		return err
	}
	quiet := time.Now()
	if err := pause(ctx, r.options.Window); err != nil {
		return err
	}
	began := time.Now()
	steady, err := r.auditFrom(offset)
	if err != nil {
		return err
	}
	about, err := happen(ctx)
	ended := time.Now()
	if err == nil {
		err = pause(ctx, afterwards)
	}
	end()
	<-load
	if failed != nil {
		r.say("    while pods were recreated: %v", failed)
	}
	if err != nil {
		return err
	}
	requests, err := r.auditFrom(offset)
	if err != nil {
		return err
	}
	requests = slices.DeleteFunc(requests, func(l logged) bool { return l.at.Before(began) })
	r.say("%s: %s; %.1f requests a second before, at most %d afterwards, %d rejected; all watch again after %d s; "+
		"%d recreated, %d pinned, %d failed", name, about, float64(len(steady))/began.Sub(quiet).Seconds(),
		busiest(requests), rejections(requests), r.watching(requests, ended), len(n.running), len(n.pinned), n.failed)
	return nil
}

// watching returns after how many seconds from the end of an accident as many watches of pods had
// begun in the requests since its beginning as there are agents, or -1. It is meaningful after an
// outage of the API server and after a restart of all agents.
func (r *costRun) watching(requests []logged, ended time.Time) int {
	begun := 0
	for _, l := range requests {
		if l.String() != "agent watch pods" || l.isRejected() {
			continue
		}
		if begun++; begun >= r.Nodes {
			return max(0, int(l.at.Sub(ended).Seconds()))
		}
	}
	return -1
}

// zoneOutage stops the agents of a zone and marks its nodes and pods as the node lifecycle
// controller does, and starts them again at once a minute later.
func (r *costRun) zoneOutage(ctx context.Context) (string, error) {
	first := r.Nodes - r.zone()
	zone := r.nodeNames(first, r.Nodes)
	about := fmt.Sprintf("%d nodes away for a minute, and back at the same time", len(zone))
	if err := r.agents.agents(ctx, zone, true, 0); err != nil {
		return about, err
	}
	began := time.Now()
	if err := r.mark(ctx, first, corev1.ConditionUnknown); err != nil {
		return about, err
	}
	if err := pause(ctx, time.Until(began.Add(time.Minute))); err != nil {
		return about, err
	}
	if err := r.agents.agents(ctx, zone, false, 0); err != nil {
		return about, err
	}
	return about, r.mark(ctx, first, corev1.ConditionTrue)
}

// mark sets the condition Ready and the taints of the nodes from a number on.
func (r *costRun) mark(ctx context.Context, first int, ready corev1.ConditionStatus) error {
	return r.each(ctx, "nodes that are "+string(ready), r.Nodes-first, func(ctx context.Context, i int) error {
		nodes := r.client.CoreV1().Nodes()
		n, err := nodes.Get(ctx, r.nodeName(first+i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = nil
		if ready != corev1.ConditionTrue {
			for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect})
			}
		}
		if n, err = nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
		for j := range n.Status.Conditions {
			if n.Status.Conditions[j].Type == corev1.NodeReady {
				n.Status.Conditions[j].Status = ready
			}
		}
		_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// managerRestart restarts all replicas, one after the other.
func (r *costRun) managerRestart(ctx context.Context) (string, error) {
	began := time.Now()
	for i := range replicas {
		if err := r.control().Stop(ctx, managerName(i)); err != nil {
			return "", err
		}
		if err := r.runManager(ctx, i); err != nil {
			return "", err
		}
		if err := r.managerReady(ctx, i); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d replicas restarted one after the other in %.0f s", replicas,
		time.Since(began).Seconds()), nil
}

// apiOutage kills the API server, and starts it again.
func (r *costRun) apiOutage(ctx context.Context) (string, error) {
	if err := r.control().Kill(ctx, cluster.APIServer); err != nil {
		return "", err
	}
	if err := pause(ctx, r.options.Outage); err != nil {
		return "", err
	}
	began := time.Now()
	if err := r.cluster.RunControl(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("the API server killed and away for %.0f s, ready after another %.0f s",
		r.options.Outage.Seconds(), time.Since(began).Seconds()), r.cluster.StopControl(ctx, cluster.ControllerManager)
}

// upgrade restarts all agents, a tenth of them at a time, as the DaemonSet does.
func (r *costRun) upgrade(ctx context.Context) (string, error) {
	for i := range 10 {
		if i > 0 {
			if err := pause(ctx, upgradeStep); err != nil {
				return "", err
			}
		}
		if err := r.agents.restart(ctx, r.nodeNames(r.Nodes*i/10, r.Nodes*(i+1)/10)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d agents restarted, a tenth of them every %.0f s", r.Nodes, upgradeStep.Seconds()), nil
}

// startAll restarts all agents at the same moment.
func (r *costRun) startAll(ctx context.Context) (string, error) {
	return fmt.Sprintf("%d agents started at the same moment", r.Nodes),
		r.agents.restart(ctx, r.nodeNames(0, r.Nodes))
}
