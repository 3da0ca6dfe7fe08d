package pinbench

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// attacks are those of SECURITY.md on a manager and an agent, with the tokens of the attackers: a
// user who may write everything in two namespaces, and the agent of the node hostile. What a pod
// does to open ports is done from the host.
type attacks struct {
	*Bench
	user      *kubernetes.Clientset
	userToken string
	namespace string                   // of the pods and reservations that are written
	agents    map[string]*agentAccount // by node
	changing  sync.Mutex               // see changeAnnotation
}

// agentAccount is the account of an agent, whose token is bound to a pod on its node.
type agentAccount struct {
	client.Client
	node  *corev1.Node
	token string
}

const (
	victim  = "victim"   // a namespace of the user
	victim2 = "victim-2" // another one
	tenant  = "tenant"   // a namespace of somebody else
	honest  = "honest"
	hostile = "hostile"
	scraped = "scraped"      // the node of the agent that runs
	lasting = 10 * time.Hour // of forged holds
)

// Attacks tries the attacks whose names match on a running manager and agent. It returns an error
// for each that succeeds.
func (b *Bench) Attacks(ctx context.Context, match *regexp.Regexp) error {
	a, err := b.prepareAttacks(ctx)
	if err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	var failed []error
	for _, attack := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"a user's annotations undo selectors of others", a.undoSelectors},
		{"a user's pods that cannot start reserve room on nodes", a.reserveRoom},
		{"a user has the manager delete pods that run, or without an end", a.haveDeleted},
		{"a user's rejected pods keep the pods of others unpinned", a.reject},
		{"a node attracts pods that have run on another one, or takes their pin", a.attract},
		{"scrapes without a pause slow agent or manager", a.scrape},
		{"open connections use up the memory of agent or manager", a.connect},
		{"requests that do not end use up the memory of the manager", a.sendMuch},
		// Each of the next four restarts the manager.
		{"changes of a user's annotation use up the memory of the manager",
			a.fillMemory(annotationBytes, a.changeAnnotation)},
		{"annotations of a user's StatefulSets use up the memory of the manager",
			a.fillMemory(annotationBytes, a.annotateSet)},
		{"annotations of a user's pods use up the memory of the manager",
			a.fillMemory(annotationBytes, a.explainPod)},
		{"the reservations of a node use up the memory of the manager", a.fillMemory(statusBytes, a.enlargeStatus)},
		{"somebody else answers for the API server", a.answerForAPI},
		{"somebody without permission reads metrics", a.readMetrics},  // restarts manager and agent
		{"somebody asks the webhooks", a.askWebhooks},                 // restarts the manager
		{"somebody else answers for the webhook", a.answerForWebhook}, // stops the manager
	} {
		if !match.MatchString(attack.name) {
			continue
		}
		a.namespace = victim
		if err := attack.run(ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", attack.name, err))
			b.say("%s: %v", attack.name, err)
			continue
		}
		b.say("%s: no", attack.name)
	}
	return errors.Join(failed...)
}

// prepareAttacks makes nodes on which nothing runs and the accounts, and starts the manager and an
// agent.
func (b *Bench) prepareAttacks(ctx context.Context) (*attacks, error) {
	// The nodes renew no Lease, so the controller manager must not run.
	if err := b.cluster.StopControl(ctx, cluster.ControllerManager); err != nil {
		return nil, err
	}
	err := b.apply(ctx, func(o *unstructured.Unstructured) bool { return o.GetName() == reservationsPolicy })
	if err != nil {
		return nil, err
	}
	core := b.client.CoreV1()
	for _, namespace := range []string{victim, victim2, tenant} {
		if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		for _, name := range []string{"default", "user"} {
			if _, err := core.ServiceAccounts(namespace).Create(ctx,
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
		}
		if namespace == tenant {
			continue
		}
		if _, err := b.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "user"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: victim, Name: "user"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	a := &attacks{Bench: b, agents: map[string]*agentAccount{}}
	config, err := b.as(ctx, victim, "user", nil)
	if err != nil {
		return nil, err
	}
	a.userToken = config.BearerToken
	if a.user, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	for i, name := range []string{honest, hostile, scraped} {
		if a.agents[name], err = b.agentOn(ctx, name, i); err != nil {
			return nil, err
		}
	}
	if err := a.startAgent(ctx); err != nil {
		return nil, err
	}
	return a, b.startManager(ctx)
}

// agentOn creates a node with the pod of an agent.
func (b *Bench) agentOn(ctx context.Context, name string, i int) (*agentAccount, error) {
	core := b.client.CoreV1()
	n := population{Nodes: 2}.bigNode(i)
	n.Name, n.Labels[corev1.LabelHostname] = name, name
	n, err := core.Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	n.Spec.Taints = nil // "not ready" is on every new node
	if n, err = core.Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	pod, err := core.Pods(wellknown.Namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: name, ServiceAccountName: cluster.Agent, Containers: containers("10m", "16Mi")},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	config, err := b.as(ctx, wellknown.Namespace, cluster.Agent, pod)
	if err != nil {
		return nil, err
	}
	client, err := reservationClient(config)
	return &agentAccount{client, n, config.BearerToken}, err
}

// as returns the configuration of a client with a token of a service account, which is bound to a
// pod if it is not nil.
func (b *Bench) as(ctx context.Context, namespace, name string, pod *corev1.Pod) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
			Name: pod.Name, UID: pod.UID}
	}
	reply, err := b.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(b.api)
	config.BearerToken, config.QPS = reply.Status.Token, -1
	return config, nil
}

// retainedPod returns a pod that asks for retention.
func retainedPod(name string) *corev1.Pod {
	no := false
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{policy.Annotation: "60m"}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: containers("10m", "16Mi")}}
}

// admitted returns the pod as it would be created.
func (a *attacks) admitted(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return a.user.CoreV1().Pods(victim).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// only returns an affinity that allows one node.
func only(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}
}

// undoSelectors creates a pod with the annotations of a pinned one, and with selectors that another
// webhook may have added.
func (a *attacks) undoSelectors(ctx context.Context) error {
	p := retainedPod("selectors")
	p.Annotations[wellknown.AnnotationPinnedNode] = hostile
	p.Annotations[wellknown.AnnotationPinReason] = "Reserved: require " + hostile
	p.Spec.NodeSelector = map[string]string{"tenant": "a"}
	p.Spec.Affinity = only(hostile)
	is, err := a.admitted(ctx, p)
	if err != nil {
		return err
	}
	if _, has := is.Annotations[wellknown.AnnotationPinnedNode]; has {
		return errors.New("the webhook has not been called")
	}
	if !equality.Semantic.DeepEqual(is.Spec.NodeSelector, p.Spec.NodeSelector) ||
		!equality.Semantic.DeepEqual(is.Spec.Affinity, p.Spec.Affinity) {
		return fmt.Errorf("selector %v, affinity %v", is.Spec.NodeSelector, is.Spec.Affinity)
	}
	return nil
}

// pinnedPod returns a pod with what the webhook writes on a pod that is pinned to a node.
func pinnedPod(name, node string) *corev1.Pod {
	p := retainedPod(name)
	p.Labels = map[string]string{wellknown.LabelRetained: wellknown.Retained}
	p.Annotations[wellknown.AnnotationPinnedNode] = node
	p.Annotations[wellknown.AnnotationPinReason] = "Reserved: require " + node
	p.Spec.Affinity = only(node)
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	terms[0].MatchExpressions = []corev1.NodeSelectorRequirement{{Key: wellknown.AnnotationPinnedNode,
		Operator: corev1.NodeSelectorOpDoesNotExist}}
	return p
}

// reserveRoom creates pods that wait for a claim that does not exist, pinned to the honest node by
// a reservation and by forged annotations. A pod of somebody else that needs nearly all of the node
// starts there, and no pod has a nominated node.
func (a *attacks) reserveRoom(ctx context.Context) error {
	pods := a.user.CoreV1().Pods(victim)
	for i := range 6 {
		p := retainedPod(fmt.Sprint("room-", i))
		if i%2 == 0 {
			p = pinnedPod(p.Name, honest)
		} else if err := a.hold(ctx, honest, p.Name, "", lasting); err != nil {
			return err
		}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "none", ResourceClaimName: new("none")}}
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	time.Sleep(2 * time.Second) // in which a nomination would be written
	big := retainedPod("big")
	big.Annotations, big.Spec.NodeSelector = nil, map[string]string{corev1.LabelHostname: honest}
	big.Spec.Containers = containers("30", "100Gi")
	others := a.client.CoreV1().Pods(tenant)
	if _, err := others.Create(ctx, big, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := until(ctx, func() (bool, error) {
		is, err := others.Get(ctx, big.Name, metav1.GetOptions{})
		return err == nil && is.Spec.NodeName == honest, err
	})
	if err != nil {
		return fmt.Errorf("a pod of somebody else does not start on %s: %w", honest, err)
	}
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range all.Items {
		if p.Status.NominatedNodeName != "" {
			return fmt.Errorf("%s has the nominated node %s", p.Name, p.Status.NominatedNodeName)
		}
	}
	return others.Delete(ctx, big.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// haveDeleted creates pods with what the webhook writes on a pinned one: one without a controller
// that would create it again, which must stay, and one that runs, which must stay as well.
func (a *attacks) haveDeleted(ctx context.Context) error {
	pods := a.user.CoreV1().Pods(victim)
	var created []*corev1.Pod
	for name, kind := range map[string]string{"bare": "", "job": "Job"} {
		p, yes := pinnedPod(name, "none"), true
		p.Annotations[policy.Annotation] = "60m"
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: kind, Name: "a", UID: "1",
				Controller: &yes}}
		}
		p, err := pods.Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		created = append(created, p)
	}
	running := pinnedPod("running", hostile)
	running.Spec.Affinity = nil
	running.Spec.NodeSelector = map[string]string{corev1.LabelHostname: honest}
	p, err := pods.Create(ctx, running, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created = append(created, p)
	time.Sleep(10 * time.Second) // longer than the patience
	for _, p := range created {
		is, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || is.UID != p.UID {
			return fmt.Errorf("%s was deleted: %w", p.Name, err)
		}
	}
	return nil
}

// reject has the user create pods that the API server rejects after the webhook was called, and ask
// the webhook in somebody else's name. The pods of another namespace are pinned nevertheless.
func (a *attacks) reject(ctx context.Context) error {
	const count = 20
	for _, namespace := range []string{victim, tenant} {
		a.namespace = namespace
		for i := range count {
			if err := a.hold(ctx, honest, fmt.Sprint("rejected-", i), "", lasting); err != nil {
				return err
			}
		}
	}
	a.namespace = victim
	if err := a.seen(ctx, "marker-rejected"); err != nil {
		return err
	}
	hook, err := a.webhook(ctx)
	if err != nil {
		return err
	}
	for i := range 3 * count {
		p := retainedPod(fmt.Sprint("rejected-", i%count))
		p.Spec.Containers[0].Name = "not valid"
		if _, err := a.user.CoreV1().Pods(victim).Create(ctx, p, metav1.CreateOptions{}); err == nil {
			return errors.New("the API server has accepted an invalid pod")
		}
		p = retainedPod(p.Name)
		p.Namespace = tenant
		review, err := json.Marshal(reviewOf(p))
		if err != nil {
			return err
		}
		if _, err := hook.ask(ctx, review); err != nil {
			return err
		}
	}
	for i := range count {
		p, err := a.client.CoreV1().Pods(tenant).Create(ctx, retainedPod(fmt.Sprint("rejected-", i)),
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if p.Annotations[wellknown.AnnotationPinnedNode] != honest {
			return fmt.Errorf("a pod of %s is not pinned: %s", tenant, p.Annotations[wellknown.AnnotationPinReason])
		}
	}
	return nil
}

// pinnedTo returns the node to which the manager pins a pod with a name, or "".
func (a *attacks) pinnedTo(ctx context.Context, name string) (string, error) {
	p, err := a.admitted(ctx, retainedPod(name))
	if err != nil {
		return "", err
	}
	if p.Labels[wellknown.LabelRetained] == "" {
		return "", errors.New("the webhook has not been called")
	}
	return p.Annotations[wellknown.AnnotationPinnedNode], nil
}

// hold has an agent publish a hold of a pod.
func (a *attacks) hold(ctx context.Context, node, pod string, uid types.UID, window time.Duration) error {
	r := &v1alpha1.IPReservation{ObjectMeta: a.reservationOf(node, pod), Spec: v1alpha1.IPReservationSpec{
		PodName: pod, NodeName: node, NodeUID: string(a.agents[node].node.UID)}}
	if err := a.agents[node].Create(ctx, r); err != nil {
		return err
	}
	return a.holdSince(ctx, node, pod, uid, window)
}

// holdSince has an agent write that the hold of a pod begins now.
func (a *attacks) holdSince(ctx context.Context, node, pod string, uid types.UID, window time.Duration) error {
	end := metav1.NewTime(time.Now().Add(window))
	patch, err := json.Marshal(map[string]any{"status": v1alpha1.IPReservationStatus{ID: fmt.Sprintf("%016x", 1),
		State: v1alpha1.Held, PodUID: string(uid), HeldUntil: &end, Window: window.String(), Confirmed: true,
		AddressList: "100.64.0.7", Addresses: []v1alpha1.Address{{Network: "cbr0", Interface: "eth0",
			Address: "100.64.0.7"}}}})
	if err != nil {
		return err
	}
	return a.agents[node].Status().Patch(ctx, &v1alpha1.IPReservation{ObjectMeta: a.reservationOf(node, pod)},
		client.RawPatch(types.MergePatchType, patch))
}

func (a *attacks) reservationOf(node, pod string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: a.namespace, Name: v1alpha1.ObjectName(pod, string(a.agents[node].node.UID)),
		Labels: map[string]string{v1alpha1.LabelNodeHash: v1alpha1.Hash(node),
			v1alpha1.LabelPodHash: v1alpha1.Hash(pod)}}
}

func (a *attacks) endHold(ctx context.Context, node, pod string) error {
	return a.agents[node].Delete(ctx, &v1alpha1.IPReservation{ObjectMeta: a.reservationOf(node, pod)})
}

// seen waits until the manager has seen all reservations that were written before: it pins a pod
// that has never run to the only node with a reservation of it.
func (a *attacks) seen(ctx context.Context, marker string) error {
	if err := a.hold(ctx, hostile, marker, "", lasting); err != nil {
		return err
	}
	err := until(ctx, func() (bool, error) {
		node, err := a.pinnedTo(ctx, marker)
		return node == hostile, err
	})
	if err != nil {
		return fmt.Errorf("the manager does not see reservations: %w", err)
	}
	return nil
}

// runs has a pod of the user start and end on the honest node.
func (a *attacks) runs(ctx context.Context, name string) (types.UID, error) {
	p := retainedPod(name)
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: honest}
	pods := a.client.CoreV1().Pods(victim)
	p, err := a.user.CoreV1().Pods(victim).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	err = until(ctx, func() (bool, error) {
		is, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && is.Spec.NodeName == honest, err
	})
	if err != nil {
		return "", fmt.Errorf("%s does not start: %w", name, err)
	}
	started := []byte(`{"status": {"phase": "Running", "podIP": "100.64.0.7", "podIPs": [{"ip": "100.64.0.7"}]}}`)
	if _, err := pods.Patch(ctx, name, types.MergePatchType, started, metav1.PatchOptions{}, "status"); err != nil {
		return "", err
	}
	now := int64(0)
	return p.UID, a.user.CoreV1().Pods(victim).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// pinned returns an error unless the manager, which has seen everything, pins a pod to a node.
func (a *attacks) pinned(ctx context.Context, name, to, story string) error {
	if err := a.seen(ctx, "marker-"+fmt.Sprint(time.Now().UnixNano())); err != nil {
		return err
	}
	time.Sleep(time.Second) // for the watch of pods
	node, err := a.pinnedTo(ctx, name)
	if err == nil && node != to {
		err = fmt.Errorf("%s: %s is pinned to %q, want %q", story, name, node, to)
	}
	return err
}

// remembered is longer than the manager pins a pod to its last node whatever is published.
const remembered = 35 * time.Second

// attract has the hostile node publish reservations of pods before and after they have run on the
// honest one. It is one sequence of steps.
func (a *attacks) attract(ctx context.Context) error {
	const (
		before = "before-0" // is held by the hostile node from before it runs
		ended  = "ended-0"  // as well, until the honest node's hold has ended
		after  = "after-0"  // is held by the hostile node after it has run
		alone  = "alone-0"  // as well, and is not held by the honest node
	)
	for _, name := range []string{before, ended} {
		if err := a.hold(ctx, hostile, name, "forged", lasting); err != nil {
			return err
		}
		if err := a.pinned(ctx, name, hostile, "it has never run"); err != nil {
			return err
		}
	}
	uids := map[string]types.UID{}
	for _, name := range []string{before, ended, after, alone} {
		uid, err := a.runs(ctx, name)
		if err != nil {
			return err
		}
		uids[name] = uid
		if name == alone {
			continue
		}
		if err := a.hold(ctx, honest, name, uid, time.Hour); err != nil {
			return err
		}
	}
	time.Sleep(remembered)
	if err := a.pinned(ctx, before, honest, "it ran elsewhere"); err != nil {
		return err
	}
	for _, forged := range []types.UID{"forged", uids[before]} {
		if err := a.holdSince(ctx, hostile, before, forged, lasting); err != nil {
			return err
		}
		if err := a.pinned(ctx, before, honest, fmt.Sprintf("a later hold of the pod %q", forged)); err != nil {
			return err
		}
	}
	if err := a.endHold(ctx, honest, ended); err != nil {
		return err
	}
	if err := a.pinned(ctx, ended, "", "its own hold has ended"); err != nil {
		return err
	}
	for _, forged := range []types.UID{uids[after], "forged", ""} {
		if err := a.hold(ctx, hostile, after, forged, lasting); err != nil {
			return err
		}
		if err := a.pinned(ctx, after, honest, fmt.Sprintf("a newer reservation, of the pod %q", forged)); err != nil {
			return err
		}
		if err := a.endHold(ctx, hostile, after); err != nil {
			return err
		}
		if err := a.pinned(ctx, after, honest, fmt.Sprintf("it was deleted, of the pod %q", forged)); err != nil {
			return err
		}
	}
	if err := a.hold(ctx, hostile, alone, "forged", lasting); err != nil {
		return err
	}
	return a.pinned(ctx, alone, "", "a newer reservation, and none of its own node")
}

// answerForWebhook has a server with another certificate answer for the manager, which is stopped.
// The API server does not trust it, unless the caBundle is changed.
func (a *attacks) answerForWebhook(ctx context.Context) error {
	if err := a.control().Stop(ctx, managerName(0)); err != nil {
		return err
	}
	host := a.cluster.HostAddr()
	cert, ca, err := selfSigned(host, wellknown.ManagerName+"."+wellknown.Namespace+".svc")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(answerWithLabel), ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	defer server.Close()
	slice := fmt.Sprintf(`[{"op": "replace", "path": "/endpoints/0/addresses/0", "value": %q},
		{"op": "replace", "path": "/ports/0/port", "value": %d}]`, host, listener.Addr().(*net.TCPAddr).Port)
	if _, err := a.client.DiscoveryV1().EndpointSlices(wellknown.Namespace).Patch(ctx, managerName(0),
		types.JSONPatchType, []byte(slice), metav1.PatchOptions{}); err != nil {
		return err
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if p, err := a.admitted(ctx, retainedPod("answered")); err != nil || p.Labels["attacked"] != "" {
			return fmt.Errorf("the API server uses its answer: %w", err)
		}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/webhooks/1/clientConfig/caBundle",
		"value": ca}})
	if err != nil {
		return err
	}
	if _, err := a.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, wellknown.ManagerName,
		types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	err = until(ctx, func() (bool, error) {
		p, err := a.admitted(ctx, retainedPod("answered"))
		return err == nil && p.Labels["attacked"] != "", err
	})
	if err != nil {
		return fmt.Errorf("with another caBundle the API server does not use its answer either: %w", err)
	}
	return nil
}

// answerWithLabel answers an AdmissionReview with a label for the pod.
func answerWithLabel(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	kind := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind,
		Patch: []byte(`[{"op": "add", "path": "/metadata/labels", "value": {"attacked": "yes"}}]`)}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}
