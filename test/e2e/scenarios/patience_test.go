package scenarios

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

var (
	zero  = resource.MustParse("0")
	oneGi = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
)

// A deletionCounter counts the retained pods that were deleted before they were bound to a node, by
// name, as a watch shows them.
type deletionCounter struct {
	t  *Test
	mu sync.Mutex
	of map[string]int
}

// countDeletions starts a deletionCounter for the scenario's namespace.
func (t *Test) countDeletions() *deletionCounter {
	d := &deletionCounter{t: t, of: map[string]int{}}
	factory := informers.NewSharedInformerFactoryWithOptions(t.Client, 0, informers.WithNamespace(t.NS))
	pods := factory.Core().V1().Pods().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if last, is := object.(cache.DeletedFinalStateUnknown); is {
			object = last.Obj
		}
		p, is := object.(*corev1.Pod)
		if !is || p.Spec.NodeName != "" || p.Labels[retained] == "" {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.of[p.Name]++
	}})
	t.Must(err)
	factory.Start(t.Ctx.Done())
	if !cache.WaitForCacheSync(t.Ctx.Done(), pods.HasSynced) {
		t.Fatalf("the pods cannot be watched")
	}
	return d
}

// total returns the number of deletions.
func (d *deletionCounter) total() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, count := range d.of {
		n += count
	}
	return n
}

// are checks how many pods were deleted so far.
func (d *deletionCounter) are(least, most int) {
	d.t.Helper()
	n := d.total()
	d.t.Step("%d pods were deleted without a node (from %d to %d are allowed)", n, least, most)
	if n < least || n > most {
		d.t.Fatalf("%d pods were deleted without a node, by name %v; want %d to %d", n, d.of, least, most)
	}
}

// fill has a workload without a window take the slots of a node.
func (t *Test) fill(name string, n *cluster.Node, replicas int, options ...Option) *Set {
	return t.Echoserver(name, n, replicas, append([]Option{KeptFor(""), Needing(t.slot())}, options...)...)
}

// away scales a set to zero and returns its former pods, whose reservations are published.
func (s *Set) away() Pods {
	before := s.Ready()
	s.t.published(before)
	s.Scale(0)
	return before
}

func pinSixty(t *Test) {
	t.Step("sixty pods run on three nodes")
	set := t.Echoserver("echoserver", nil, 60)
	deletions := t.countDeletions()
	before := set.Ready()
	for i := range 2 {
		t.Step("all are deleted at once, time %d", i+1)
		set.Delete(before)
		after := set.ReadyBut(before)
		t.onSameNodes(before, after)
		before = after
	}
	deletions.are(0, 0)
}

func pinFull(t *Test) {
	t.slots(1)
	deletions := t.countDeletions()
	for _, mode := range []string{"prefer", "require"} {
		set := t.Echoserver(mode, nil, 1, Pin(mode), Needing(t.slot()))
		before := set.away()
		name, node := mode+"-0", t.NodeOf(before[mode+"-0"])
		t.Step("%s: a pod of the same priority has taken its node", mode)
		filler := t.fill("filler-"+mode, node, 1)
		began := time.Now()
		set.Scale(1)
		p := t.moved(before, set.Ready(), name)
		t.Step("it was Ready elsewhere after %.1f s", time.Since(began).Seconds())
		t.EventOf(p, "AddressChanged", node.Name)
		filler.Scale(0)
		set.Scale(0)
		if mode == "prefer" {
			deletions.are(0, 0)
		}
	}
	deletions.are(1, 1)

	t.Step("a pod with a patience of a minute: its node has room before that")
	set := t.Echoserver("patient", nil, 1, Patience("1m"), Needing(t.slot()))
	const name = "patient-0"
	before := set.away()
	filler := t.fill("filler", t.NodeOf(before[name]), 1)
	set.Scale(1)
	waiting := set.waits(name, before)
	filler.Scale(0)
	after := set.Ready()
	t.onSameNodes(before, after)
	if after[name].UID != waiting.UID {
		t.Fatalf("the pod that waited was replaced")
	}
	deletions.are(1, 1)
}

// Priority creates a priority class, and gives pods that class.
func (t *Test) Priority(value int32) Option {
	classes, name := t.Client.SchedulingV1().PriorityClasses(), fmt.Sprintf("%s-%d", t.NS, value)
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	_, err := classes.Create(t.Ctx, class, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(func() { t.Must(classes.Delete(t.Ctx, name, metav1.DeleteOptions{})) })
	return func(template *corev1.PodTemplateSpec) { template.Spec.PriorityClassName = name }
}

func pinPreempts(t *Test) {
	t.slots(1)
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", nil, 1, Needing(t.slot()), t.Priority(1000))
	before := set.away()
	node := t.NodeOf(before["echoserver-0"])
	t.Step("a pod of lower priority has taken its node, and takes 20 s to end: longer than the patience")
	filler := t.fill("filler", node, 1, Stubborn(20*time.Second), t.Priority(1))
	victim := filler.Ready()
	set.Scale(1)
	after := set.Ready()
	t.onSameNodes(before, after)
	deletions.are(0, 0)
	for _, p := range filler.Pods() {
		if p.UID == victim[p.Name].UID {
			t.Fatalf("%s runs on %s, although a pod of higher priority has its slot", p.Name, p.Spec.NodeName)
		}
	}
	filler.Resize(0)
}

func pinFullNamed(t *Test) {
	t.slots(3)
	n := t.Node(1)
	deletions := t.countDeletions()
	t.Step("three pods with a reservation name run on %s", n.Name)
	set := t.Named("registry", n, 3, recreateStrategy, Needing(t.slot()))
	before := set.Ready()
	t.published(before)
	set.Scale(0)
	set.patch(`{"spec":{"template":{"spec":{"affinity":null}}}}`)
	t.publishedAsHeld(3)
	t.Step("other pods have taken all of its slots")
	filler := t.fill("filler", n, 3)
	set.Scale(3)
	for _, p := range set.Ready() {
		if p.Spec.NodeName == n.Name {
			t.Fatalf("%s runs on %s", p.Name, n.Name)
		}
	}
	deletions.are(1, 9) // up to three times for each of the three that wait at once
	filler.Scale(0)
}

func pinClaim(t *Test) {
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", nil, 1)
	before := set.Ready()
	t.published(before)
	t.Step("the new pod has a claim that nothing binds")
	claims := t.Client.CoreV1().PersistentVolumeClaims(t.NS)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new("none"), Resources: corev1.VolumeResourceRequirements{Requests: oneGi}}}
	_, err := claims.Create(t.Ctx, claim, metav1.CreateOptions{})
	t.Must(err)
	set.patch(`{"spec":{"template":{"spec":{"volumes":[{"name":"data",` +
		`"persistentVolumeClaim":{"claimName":"data"}}]}}}}`)
	set.waits("echoserver-0", before)
	time.Sleep(time.Minute)
	deletions.are(1, 1)
	t.Step("a volume is there for the claim: the pod starts")
	volumes := t.Client.CoreV1().PersistentVolumes()
	_, err = volumes.Create(t.Ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: t.NS},
		Spec: corev1.PersistentVolumeSpec{Capacity: oneGi, AccessModes: claim.Spec.AccessModes,
			StorageClassName: "none", PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}}}, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(func() { t.Must(volumes.Delete(t.Ctx, t.NS, metav1.DeleteOptions{})) })
	t.Cleanup(func() { t.Must(claims.Delete(t.Ctx, "data", metav1.DeleteOptions{})) })
	t.Cleanup(t.Clear)
	set.Ready()
	deletions.are(1, 1)
}

// killManagers kills the processes of managers.
func (t *Test) killManagers(pods ...corev1.Pod) {
	for _, p := range pods {
		t.Signal(p, "KILL")
	}
}

func pinKilled(t *Test) {
	t.Must(t.Cluster.WaitDeployed(t.Ctx, time.Minute))
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", nil, 6)
	before := set.Ready()
	t.published(before)
	t.Step("the scheduler is away for a minute while all pods are deleted; then both managers are killed")
	run := t.WithoutControl(cluster.Scheduler)
	set.Delete(before)
	t.Eventually("all are admitted", func() error {
		pods := set.Pods()
		for name, p := range pods {
			if p.UID == before[name].UID || p.Annotations[pinnedNode] == "" {
				return fmt.Errorf("%s is not", name)
			}
		}
		if len(pods) != len(before) {
			return fmt.Errorf("%d are", len(pods))
		}
		return nil
	})
	time.Sleep(time.Minute)
	deletions.are(0, 0)
	t.killManagers(t.Managers()...)
	t.Step("the scheduler runs again: no manager is needed for the pods to start on their nodes")
	run()
	t.onSameNodes(before, set.ReadyBut(before))
	deletions.are(0, 0)
	t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
}

func namedEnding(t *Test) {
	t.slots(1)
	n := t.Node(1)
	deletions := t.countDeletions()
	t.Step("a pod with a reservation name on %s, which has room for one, takes 20 s to end", n.Name)
	set := t.Named("registry", nil, 1, unavailable(1), Needing(t.slot()), preferring(n), Stubborn(20*time.Second))
	before := set.Ready()
	t.published(before)
	began := time.Now()
	t.sameSet("rollout", before, set.Rollout())
	t.Step("the rollout took %.0f s", time.Since(began).Seconds())
	deletions.are(0, 0)
}

func pinFinalizer(t *Test) {
	t.slots(1)
	deletions := t.countDeletions()
	n := t.Node(1)
	t.Step("a pod with a reservation name on %s has a finalizer that nobody removes, and ends for an hour", n.Name)
	set := t.Named("registry", nil, 1, unavailable(1), Needing(t.slot()), preferring(n), Stubborn(time.Hour))
	before := set.Ready()
	t.published(before)
	finalizers := func(list string) {
		for name := range before {
			_, err := t.Client.CoreV1().Pods(t.NS).Patch(t.Ctx, name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
			t.Must(err)
		}
	}
	finalizers(`["leasehold.dev/e2e"]`)
	t.Cleanup(func() {
		for _, p := range before {
			t.killContainers(n, p) // the kubelet does not shorten the time to end that they have
		}
		finalizers(`null`)
	})
	began := time.Now()
	// The successor ends in time: the kubelet would not shorten its hour either.
	set.patch(`{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}`)
	after := set.readyWithin(7*time.Minute, before) // managers that have just started wait for 5 min
	t.Step("its successor is Ready after %.0f s", time.Since(began).Seconds())
	for _, p := range after {
		if p.Spec.NodeName == n.Name {
			t.Fatalf("it runs on %s, which is full", n.Name)
		}
	}
	deletions.are(1, 3)
}

func pinGated(t *Test) {
	const gate = "example.com/gate"
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", nil, 1)
	before := set.Ready()
	t.published(before)
	t.Step("another controller holds the new pod back by a gate, longer than the patience")
	set.patch(`{"spec":{"template":{"spec":{"schedulingGates":[{"name":%q}]}}}}`, gate)
	var p corev1.Pod
	t.Eventually("the new pod is there", func() error {
		p = set.Pods()["echoserver-0"]
		if p.UID == before["echoserver-0"].UID || len(p.Spec.SchedulingGates) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	if reason := p.Annotations[pinReason]; !strings.Contains(reason, "prefer ") ||
		!strings.Contains(reason, "not required: it has scheduling gates") || len(p.Spec.SchedulingGates) != 1 {
		t.Fatalf("the reason is %q, the gates are %v", reason, p.Spec.SchedulingGates)
	}
	time.Sleep(pastPatience)
	_, err := t.Client.CoreV1().Pods(t.NS).Patch(t.Ctx, p.Name, types.StrategicMergePatchType,
		[]byte(`{"spec":{"schedulingGates":[{"$patch":"delete","name":"`+gate+`"}]}}`), metav1.PatchOptions{})
	t.Must(err)
	t.onSameNodes(before, set.ReadyBut(before))
	deletions.are(0, 0)
}

func namedReplicas(t *Test) {
	deletions := t.countDeletions()
	t.Step("three managers run")
	scale := func(n int) {
		t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, fmt.Sprint("--replicas=", n))
		t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	}
	t.Cleanup(func() { scale(2) })
	scale(3)
	const pods, rounds = 6, 3
	set := t.Named("registry", nil, pods, unavailable(pods))
	before := set.Ready()
	kept := 0
	for range rounds {
		after := set.Rollout()
		was := strings.Fields(addressSet(before))
		for _, p := range after {
			if slices.Contains(was, addresses(p)) {
				kept++
			}
		}
		before = after
	}
	t.Step("%d of %d pods had one of the addresses", kept, pods*rounds)
	if kept < pods*rounds-pods/2 {
		t.Fatalf("only %d of %d pods had one of the addresses", kept, pods*rounds)
	}
	deletions.are(0, 3)
}

func pinRestarted(t *Test) {
	t.Must(t.Cluster.WaitDeployed(t.Ctx, time.Minute))
	t.slots(1)
	deletions, managers := t.countDeletions(), t.Managers()
	for i := range 2 {
		name := fmt.Sprint("echoserver-", i)
		set := t.Echoserver(name, nil, 1, Needing(t.slot()))
		before := set.away()
		filler := t.fill(fmt.Sprint("filler-", i), t.NodeOf(before[name+"-0"]), 1)
		counted := deletions.total()
		set.Scale(1)
		t.Eventually("the pod is replaced", func() error {
			if deletions.total() == counted {
				return errors.New("it is not")
			}
			return nil
		})
		t.Step("manager %d is killed right after it", i+1)
		t.killManagers(managers[i])
		t.moved(before, set.Ready(), name+"-0")
		deletions.are(counted+1, counted+3)
		t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
		filler.Scale(0)
		set.Scale(0)
	}
}

func pinQuota(t *Test) {
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", nil, 2)
	registry := t.Named("registry", nil, 1, recreateStrategy)
	before, named := set.Ready(), registry.Ready()
	t.published(merge(before, named))
	const times = 20
	t.Step("a later webhook rejects each pod %d times", times)
	set.Scale(0)
	registry.Scale(0)
	done := t.laterWebhook(func(*corev1.Pod) (patch, refusal string) { return "", "not now" })
	for _, p := range merge(before, named) {
		for range times {
			t.rejected(p, "not now")
		}
	}
	done()
	time.Sleep(6 * time.Second) // a replica remembers for 5 s where it sent a pod
	set.Scale(2)
	t.onSameNodes(before, set.Ready())
	t.sameSet("the Deployment", named, scaledTo(registry, 1))
	deletions.are(0, 0)

	t.Step("a quota rejects the pods for half a minute")
	before, named = set.Ready(), registry.Ready()
	t.published(merge(before, named))
	quotas := t.Client.CoreV1().ResourceQuotas(t.NS)
	_, err := quotas.Create(t.Ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: zero}}}, metav1.CreateOptions{})
	t.Must(err)
	t.Eventually("the quota counts", func() error {
		q, err := quotas.Get(t.Ctx, "none", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) == 0 {
			err = errors.New("it does not")
		}
		return err
	})
	set.Delete(before)
	registry.Delete(named)
	time.Sleep(30 * time.Second)
	t.Must(quotas.Delete(t.Ctx, "none", metav1.DeleteOptions{}))
	t.onSameNodes(before, set.ReadyBut(before))
	t.sameSet("the Deployment", named, registry.ReadyBut(named))
	deletions.are(0, 0)
}

// rejected creates a pod as the controller of p does, and fails if the API server does not reject
// it with a text.
func (t *Test) rejected(p corev1.Pod, text string) {
	next := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: p.Labels, Annotations: p.Annotations,
		OwnerReferences: p.OwnerReferences}, Spec: p.Spec}
	if p.GenerateName != "" {
		next.Name, next.GenerateName = "", p.GenerateName
	}
	next.Spec.NodeName, next.Spec.Affinity = "", nil
	_, err := t.Client.CoreV1().Pods(t.NS).Create(t.Ctx, next, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("creating a pod as %s: %v; want an error with %q", p.Name, err, text)
	}
}

func pinPlaced(t *Test) {
	deletions := t.countDeletions()
	set := t.Echoserver("echoserver", t.Node(1), 1)
	set.anywhere()
	before := set.Ready()
	t.published(before)
	two := t.Node(2).Name
	pinned := 0
	t.laterWebhook(func(p *corev1.Pod) (patch, refusal string) {
		if p.Annotations[pinnedNode] == "" {
			return "", ""
		}
		pinned++
		return `[{"op":"add","path":"/spec/nodeName","value":"` + two + `"}]`, ""
	})
	t.Step("a later webhook sets the node of a pod that was pinned to another one")
	set.Delete(before)
	p := t.moved(before, set.ReadyBut(before), "echoserver-0")
	if p.Spec.NodeName != two || p.Annotations[pinnedNode] != "" || pinned == 0 {
		t.Fatalf("it is on %s, with the annotations %v", p.Spec.NodeName, p.Annotations)
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Fatalf("its affinity is %v", a.NodeAffinity)
	}
	deletions.are(0, 0)
}

// laterWebhook serves a webhook for the scenario's pods, which the API server calls after the
// manager's, until done is called or the scenario ends. review returns a JSON patch, or the reason
// for which the pod is rejected.
func (t *Test) laterWebhook(review func(*corev1.Pod) (patch, refusal string)) (done func()) {
	host := t.Cluster.HostAddr()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host.String(), nil, nil)
	t.Must(err)
	pair, err := tls.X509KeyPair(certificate, key)
	t.Must(err)
	listener, err := tls.Listen("tcp", net.JoinHostPort(host.String(), "0"),
		&tls.Config{Certificates: []tls.Certificate{pair}})
	t.Must(err)
	var mu sync.Mutex
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked admissionv1.AdmissionReview
		var pod corev1.Pod
		if json.NewDecoder(r.Body).Decode(&asked) != nil || json.Unmarshal(asked.Request.Object.Raw, &pod) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		patch, refusal := review(&pod)
		mu.Unlock()
		answer := &admissionv1.AdmissionResponse{UID: asked.Request.UID, Allowed: refusal == "",
			Result: &metav1.Status{Message: refusal}}
		if patch != "" {
			answer.Patch, answer.PatchType = []byte(patch), new(admissionv1.PatchTypeJSONPatch)
		}
		asked.Request, asked.Response = nil, answer
		json.NewEncoder(w).Encode(asked)
	})}
	go server.Serve(listener)
	hooks, name := t.Client.AdmissionregistrationV1().MutatingWebhookConfigurations(), "zz-"+t.NS
	none, always := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.IfNeededReinvocationPolicy
	ignore := admissionregistrationv1.Fail
	url := "https://" + listener.Addr().String()
	_, err = hooks.Create(t.Ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "zz.leasehold.dev", SideEffects: &none,
			ReinvocationPolicy: &always, FailurePolicy: &ignore, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: certificate},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
				corev1.LabelMetadataName: t.NS}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods"}}}}}}}, metav1.CreateOptions{})
	t.Must(err)
	done = untilDone(func() {
		t.Must(hooks.Delete(t.Ctx, name, metav1.DeleteOptions{}))
		server.Close()
	})
	t.Cleanup(done)
	t.Eventually("the webhook is called", func() error {
		probe := t.bare("probe", nil)
		probe.Annotations["probe"] = "true"
		asked := false
		mu.Lock()
		next := review
		review = func(p *corev1.Pod) (string, string) {
			if p.Annotations["probe"] != "" {
				asked = true
				return "", ""
			}
			return next(p)
		}
		mu.Unlock()
		t.createPod(probe, metav1.DryRunAll)
		if !asked {
			return errors.New("it is not")
		}
		return nil
	})
	return done
}

// pinIgnored has a scheduler that ignores node affinity, although --schedulers names it.
func pinIgnored(t *Test) {
	const scheduler = "e2e-scheduler"
	one, two := t.Node(1), t.Node(2)
	t.Kubectl("--namespace="+cluster.System, "patch", "deployment", cluster.Manager, "--type=strategic", "-p",
		`{"spec":{"template":{"spec":{"containers":[{"name":"manager","args":["--schedulers","default-scheduler,`+
			scheduler+`"]}]}}}}`)
	t.Cleanup(func() {
		t.Must(t.Cluster.Apply(t.Ctx))
		t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	})
	t.managersReplaced()
	set := t.echoserver("blind", nil, 3, KeptFor("1h"), func(template *corev1.PodTemplateSpec) {
		template.Spec.SchedulerName = scheduler
	})
	_, err := t.Client.AppsV1().StatefulSets(t.NS).Create(t.Ctx, &set, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(t.Clear)
	s := t.set("blind", 3)
	t.bind(s, nil, one)
	before := s.Ready()
	t.published(before)
	t.Step("three pods of %s are deleted, and it binds their successors to another node", scheduler)
	s.Delete(before)
	t.Eventually("the pods run there", func() error {
		t.bind(s, before, two)
		for name, p := range s.Pods() {
			if !ready(p) || p.Spec.NodeName != two.Name {
				return fmt.Errorf("%s is %s on %s: %s", name, p.Status.Phase, p.Spec.NodeName, p.Status.Reason)
			}
		}
		return nil
	})
	for name, p := range s.Pods() {
		if reason := p.Annotations[pinReason]; !strings.Contains(reason, "an earlier pod did not get onto "+one.Name) {
			t.Fatalf("the reason of %s is %q", name, reason)
		}
	}
}
