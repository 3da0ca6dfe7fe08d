package simulated

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The texts that the attackers of the manager's memory write. Annotations have at most 256 KiB in
// all, and an object in etcd 1.5 MiB.
const (
	annotationBytes = 250 << 10
	statusBytes     = 1200 << 10
)

// victim is the namespace of the user who attacks.
const victim = "victim"

// attacks tries those attacks of SECURITY.md on a running manager that its packages' own tests
// cannot show.
func (r *rig) attacks() {
	node := newNode(0)
	uid, err := r.register(r.ctx, node)
	r.must(err)
	r.namespace(victim)
	r.startManagers()
	a := &attacker{rig: r, nodeUID: uid}
	pod, err := r.client.CoreV1().Pods(kube.Namespace).Create(r.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: corev1.PodSpec{NodeName: node.Name,
			ServiceAccountName: cluster.Agent, Containers: containers("10m", "16Mi")}}, metav1.CreateOptions{})
	r.must(err)
	config := *r.api
	config.CertData, config.KeyData, config.BearerToken = nil, nil, r.token(kube.Namespace, cluster.Agent, pod)
	a.agent, err = reservationClient(&config)
	r.must(err)
	r.Run("somebody asks the webhooks", a.on(a.askWebhook))
	for name, write := range map[string]func(ctx context.Context, i int, text string) error{
		"changes of a user's annotation":       a.changeAnnotation,
		"annotations of a user's StatefulSets": a.annotateSet,
		"annotations of a user's pods":         a.explainPod,
		"reservations of a node":               a.enlargeStatus,
	} {
		r.Run(name, a.on(func() { a.fillMemory(write) }))
	}
	r.Run("somebody answers for the API server", a.on(a.answerForAPI))
}

type attacker struct {
	*rig
	agent    client.Client
	nodeUID  string
	changing sync.Mutex // see changeAnnotation
}

// on runs an attack as a subtest.
func (a *attacker) on(attack func()) func(*testing.T) {
	return func(t *testing.T) {
		parent := a.T
		defer func() { a.T = parent }()
		a.T = t
		attack()
	}
}

// askWebhook connects to the webhook without the API server's certificate. The API server still
// gets an answer.
func (a *attacker) askWebhook() {
	insecure := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := insecure.Post(fmt.Sprintf("https://%v:%d/pin", a.cluster.ControlAddr(), webhookPort),
		"application/json", strings.NewReader("{}"))
	if err == nil {
		response.Body.Close()
		a.Errorf("without a certificate it answers %s", response.Status)
	}
	a.until("the API server calls the webhook", func() error {
		p, err := a.client.CoreV1().Pods(victim).Create(a.ctx, retainedPod("called"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && p.Labels[kube.LabelRetained] == "" {
			err = errors.New("the webhook was not called")
		}
		return err
	})
}

// retainedPod returns a pod that asks for retention.
func retainedPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{policy.Annotation: "60m"}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: new(false), Containers: containers("10m", "16Mi")}}
}

// changed is the StatefulSet whose annotations changeAnnotation changes.
const changed = "changed"

// fillMemory writes texts of which each differs. The heap of the manager must hardly grow.
func (a *attacker) fillMemory(write func(ctx context.Context, i int, text string) error) {
	mib := a.number("ATTACK_MIB", 24)
	// The leader reads the annotations of StatefulSets once there is one that asks for it.
	sets := a.client.AppsV1().StatefulSets(victim)
	_, err := sets.Create(a.ctx, topology(changed, map[string]string{v1beta1.AnnotationGenerate: "true",
		v1beta1.AnnotationRequiredTopology: "!"}), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		a.must(err)
	}
	before := a.heap()
	a.each("texts", mib<<20/annotationBytes, func(ctx context.Context, i int) error {
		return write(ctx, i, fmt.Sprintf("%08d%s", i, strings.Repeat("x", annotationBytes-8)))
	})
	// It has read what was written last when it pins a pod by a reservation that was written later.
	a.hold("last-0")
	a.until("the manager has seen the last reservation", func() error {
		p, err := a.client.CoreV1().Pods(victim).Create(a.ctx, retainedPod("last-0"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && p.Annotations[kube.AnnotationPinnedNode] == "" {
			err = errors.New(p.Annotations[kube.AnnotationPinReason])
		}
		return err
	})
	a.Logf("%d MiB written: heap %.1f MiB before, %.1f MiB after", mib, before, a.heap())
	a.until("the heap has hardly grown", func() error { // reports that are being written take some
		if now, most := a.heap(), before+float64(mib)/8; now > most {
			return fmt.Errorf("it grows from %.1f to %.1f MiB, want at most %.1f", before, now, most)
		}
		return nil
	})
	a.must(a.agent.Delete(a.ctx, &v1alpha1.IPReservation{ObjectMeta: a.reservation("last-0")}))
}

// heap returns the size of the live objects of the leader and the other replica, in MiB, the larger
// one.
func (a *attacker) heap() (most float64) {
	a.Helper()
	for i := range replicas {
		response, err := http.Get(fmt.Sprintf("http://%v:%d/debug/pprof/heap?gc=1&debug=1", a.cluster.ControlAddr(),
			pprofPort+portsApart*i))
		a.must(err)
		body, err := io.ReadAll(response.Body)
		a.must(errors.Join(err, response.Body.Close()))
		_, rest, _ := strings.Cut(string(body), "# HeapAlloc = ")
		var bytes float64
		if _, err := fmt.Sscan(rest, &bytes); err != nil {
			a.Fatalf("the manager's profile has no HeapAlloc: %v", err)
		}
		most = max(most, bytes/(1<<20))
	}
	return most
}

// topology returns a StatefulSet without pods.
func topology(name string, annotations map[string]string) *appsv1.StatefulSet {
	labels := map[string]string{"set": name}
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: containers("10m", "16Mi")}}}}
}

// changeAnnotation gives one StatefulSet another invalid list of labels. The API server makes one
// change of an object at a time.
func (a *attacker) changeAnnotation(ctx context.Context, _ int, text string) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: "!%s"}}}`, v1beta1.AnnotationRequiredTopology, text)
	_, err := a.client.AppsV1().StatefulSets(victim).Patch(ctx, changed, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// annotateSet creates a StatefulSet with an annotation of others.
func (a *attacker) annotateSet(ctx context.Context, i int, text string) error {
	_, err := a.client.AppsV1().StatefulSets(victim).Create(ctx,
		topology(fmt.Sprint("large-", i), map[string]string{"example.com/notes": text}), metav1.CreateOptions{})
	return err
}

// explainPod creates a pod that never starts, with an annotation of the manager.
func (a *attacker) explainPod(ctx context.Context, i int, text string) error {
	p := retainedPod(fmt.Sprint("explained-", i))
	p.Spec.SchedulerName = "none"
	p, err := a.client.CoreV1().Pods(victim).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, kube.AnnotationPinReason, text)
	_, err = a.client.CoreV1().Pods(victim).Patch(ctx, p.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

func (a *attacker) reservation(pod string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: victim, Name: v1alpha1.ObjectName(pod, a.nodeUID),
		Labels: map[string]string{v1alpha1.LabelNodeHash: v1alpha1.Hash(nodeName(0)),
			v1alpha1.LabelPodHash: v1alpha1.Hash(pod)}}
}

// create has the agent write a reservation of a pod that is away.
func (a *attacker) create(ctx context.Context, pod, uid string) error {
	r := &v1alpha1.IPReservation{ObjectMeta: a.reservation(pod),
		Spec: v1alpha1.IPReservationSpec{PodName: pod, NodeName: nodeName(0), NodeUID: a.nodeUID}}
	if err := a.agent.Create(ctx, r); err != nil {
		return err
	}
	before, until := client.MergeFrom(r.DeepCopy()), metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))
	r.Status = v1alpha1.IPReservationStatus{ID: fmt.Sprintf("%016x", 1), State: v1alpha1.Held, Window: "1h0m0s",
		PodUID: uid, HeldUntil: &until, AddressList: "100.64.0.7",
		Addresses: []v1alpha1.Address{{Network: "cbr0", Interface: "eth0", Address: "100.64.0.7"}}}
	return a.agent.Status().Patch(ctx, r, before)
}

func (a *attacker) hold(pod string) {
	a.Helper()
	a.must(a.create(a.ctx, pod, ""))
}

// enlargeStatus has the agent write a reservation with a large status, unless the schema rejects
// it.
func (a *attacker) enlargeStatus(ctx context.Context, i int, text string) error {
	err := a.create(ctx, fmt.Sprint("enlarged-", i), strings.Repeat(text, statusBytes/annotationBytes))
	if apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

// answerForAPI has a server with another certificate answer for the API server. Agent and manager
// connect, and send it no token, unless their kubeconfig names its CA.
func (a *attacker) answerForAPI() {
	cert, ca, err := selfSigned(a.cluster.HostAddr())
	a.must(err)
	listener, err := net.Listen("tcp", netip.AddrPortFrom(a.cluster.HostAddr(), 0).String())
	a.must(err)
	var refused, tokens atomic.Int32
	answers := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ErrorLog: log.New(counter{&refused}, "", 0), // of handshakes that the client breaks off
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				tokens.Add(1)
			}
			http.NotFound(w, r)
		})}
	go func() { _ = answers.ServeTLS(listener, "", "") }()
	defer answers.Close()
	manager, err := a.cluster.Build(a.ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-manager"})
	a.must(err)
	agent, err := a.cluster.Build(a.ctx, cluster.Program{Module: ".", Package: "cmd/leasehold-agent"})
	a.must(err)
	for name, argv := range map[string][]string{
		"deceived-manager": {manager, "--cert-dir=/run/" + managerName(0), "--webhook-port=9553", "--metrics-addr=0",
			"--health-addr=0"},
		"deceived-agent": {agent, "--node-name=" + nodeName(0), "--cni-conf-dir=", "--metrics-addr="},
	} {
		for _, trusted := range []bool{false, true} {
			other := &server{"https://" + listener.Addr().String(), a.api.CAData}
			if trusted {
				other.ca = ca
			}
			refused.Store(0)
			tokens.Store(0)
			a.must(a.control().Start(a.ctx, machine.Start{Name: name, Log: a.cluster.Log(cluster.Control, name),
				Argv: append(argv, "--kubeconfig="+a.kubeconfig(name, "a-token", other))}))
			a.until(name+" has connected", func() error {
				if trusted && tokens.Load() == 0 || !trusted && refused.Load() == 0 {
					return fmt.Errorf("%d connections refused, %d tokens", refused.Load(), tokens.Load())
				}
				return nil
			})
			_ = a.control().Stop(a.ctx, name) // it may have ended
			if !trusted && tokens.Load() > 0 {
				a.Errorf("%s sends a token to a server that it does not trust", name)
			}
		}
	}
}

// A counter counts writes.
type counter struct{ n *atomic.Int32 }

func (c counter) Write(b []byte) (int, error) { c.n.Add(1); return len(b), nil }

// selfSigned creates a certificate for an address, and returns it also as a CA.
func selfSigned(at netip.Addr) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{at.AsSlice()},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}
