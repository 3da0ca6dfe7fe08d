package scenarios

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// eventsReported produces every event, in a network with five addresses and a short maximum window.
func eventsReported(t *Test) {
	const longest = 5 * time.Second
	n := t.Node(3)
	network := five(t.NS, "bridge", n)
	network.IPAM = map[string]any{"maxWindow": longest.String()}
	t.Networks(n, network)
	t.Step("an echoserver with a window of 10 min starts on %s, where the maximum is %s", n.Name, longest)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()["echoserver-0"]
	t.Step("%s", t.EventOf(before, "ReservationLimited", "10m0s", "cut to", longest.String()))
	set.Scale(0)
	// Until the hold is collected, because a new pod defers its end.
	t.Until("its window ends", func() bool {
		return slices.ContainsFunc(t.History(n), func(e store.Entry) bool {
			return e.Event == "Expired" && e.Name == before.Name
		})
	})
	after := scaledTo(set, 1)["echoserver-0"]
	t.Step("%s", t.EventOf(after, "AddressChanged", addresses(after)+" instead of "+addresses(before),
		"its window ended"))

	t.Step("the pods of a ReplicaSet and a Job take the other four addresses; they have a window, but their names " +
		"are not used again")
	others := t.Deployment("others", n, 3, KeptFor("10"))
	t.job("job", n)
	pods := merge(others.Ready(), t.set("job", 1).Ready())
	t.noLease(n, "of them with a window", func(l cli.Row) bool {
		_, is := pods[l.Pod]
		return is && l.Window != ""
	})
	t.InSync(n, "five addresses are in use")
	t.Until("one of them has the event AddressPoolLow", func() bool {
		return slices.ContainsFunc(t.events(t.NS, "reason=AddressPoolLow"), func(e corev1.Event) bool {
			_, is := pods[e.InvolvedObject.Name]
			return is
		})
	})
}

// job creates a Job whose pod runs forever.
func (t *Test) job(name string, n *cluster.Node) {
	template := t.echoserver(name, n, 1).Spec.Template
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: template}}
	_, err := t.Client.BatchV1().Jobs(t.NS).Create(t.Ctx, job, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(t.Clear)
}
