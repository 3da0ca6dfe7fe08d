package simulated

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// frozen deletes all pods of StatefulSets while the scheduler is frozen. All of them have to return
// to their nodes and addresses.
func (r *rig) frozen() {
	const nodes, ofSet = 20, 50
	away := 20 * time.Second // longer than the patience
	count := r.number("RECREATIONS", 32)
	f := filled{nodes: make([]string, nodes)}
	r.each("nodes", nodes, func(ctx context.Context, i int) (err error) {
		f.nodes[i], err = r.register(ctx, newNode(i))
		return err
	})
	r.startManagers(nil)
	k := r.startKubelets(r.startAgents(population{nodes: nodes}, f, 0), false, nil)
	before := map[types.NamespacedName]*corev1.Pod{}
	for i := 0; len(before) < count; i++ {
		namespace := fmt.Sprintf("frozen-%d", i)
		r.namespace(namespace)
		s := statefulSet("require", "set", false)
		s.Namespace, s.Spec.Replicas = namespace, new(int32(min(ofSet, count-len(before))))
		s.Spec.Template.Spec.NodeSelector, s.Spec.Template.Spec.Containers = nil, containers("10m", "16Mi")
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{}
		_, err := r.client.AppsV1().StatefulSets(namespace).Create(r.ctx, s, metav1.CreateOptions{})
		r.must(err)
		r.must(k.published(r.ctx, s, int(*s.Spec.Replicas)))
		for j := range int(*s.Spec.Replicas) {
			before[podOf(s, j)] = k.get(podOf(s, j)).pod
		}
	}
	reply, err := r.control().Call(r.ctx, machine.Request{List: true})
	r.must(err)
	signal := func(name string) {
		_, err := r.control().Run(context.WithoutCancel(r.ctx), "kill", name,
			fmt.Sprint(reply.Services[cluster.Scheduler]))
		r.must(err)
	}
	signal("-STOP")
	began := time.Now()
	for i := 0; i*ofSet < count; i++ {
		r.must(r.client.CoreV1().Pods(fmt.Sprintf("frozen-%d", i)).DeleteCollection(r.ctx, metav1.DeleteOptions{},
			metav1.ListOptions{}))
	}
	for name, old := range before {
		r.until("a new pod exists", func() error {
			if now := k.get(name); now.pod == nil || now.pod.UID == old.UID {
				return fmt.Errorf("%s is not created again", name)
			}
			return nil
		})
	}
	r.must(pause(r.ctx, time.Until(began.Add(away))))
	signal("-CONT")
	for name, old := range before {
		now, err := k.running(r.ctx, name, old.UID)
		r.must(err)
		if now.pod.Spec.NodeName != old.Spec.NodeName || now.pod.Status.PodIP != old.Status.PodIP {
			r.Errorf("%s was on %s as %s: %s", name, old.Spec.NodeName, old.Status.PodIP, describe(now.pod))
		}
		if now.pod.Annotations[wellknown.AnnotationPinnedNode] != old.Spec.NodeName {
			r.Errorf("%s is not pinned: %s", name, describe(now.pod))
		}
	}
	r.Logf("%d pods deleted while the scheduler was frozen for %v", count, away)
}
