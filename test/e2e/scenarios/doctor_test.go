package scenarios

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// doctorFinding is a finding of doctor as its JSON has it.
type doctorFinding struct {
	Reason, Subject, What, Why string
	Repair                     []string
}

// doctor has `kubectl leasehold doctor` find nothing in a healthy cluster, and each of several
// faults, whose commands repair it.
func doctor(t *Test) {
	dir := t.pluginDir()
	t.Step("kubectl leasehold doctor, and leasectl doctor on each node, find nothing")
	t.healthy(dir)
	for _, name := range t.nodes {
		out, err := t.own(name).Machine().Run(t.Ctx, t.Cluster.Leasectl(), "doctor")
		if err != nil {
			t.Fatalf("leasectl doctor on %s: %v\n%s", name, err, out)
		}
	}

	set := t.Echoserver("held", t.Node(1), 2, KeptFor("1h"))
	set.Scale(0)
	t.Eventually(time.Minute, "two addresses are published as held", func() error {
		held := 0
		for _, r := range t.Reservations() {
			if r.Status.State == "Held" {
				held++
			}
		}
		if held != 2 {
			return fmt.Errorf("%d are", held)
		}
		return nil
	})
	t.Step("an administrator sets a limit of two held addresses")
	t.Kubectl("--namespace="+cluster.System, "create", "configmap", "leasehold-limits", "--from-literal=maxHeld=2")
	t.Cleanup(func() {
		t.Kubectl("--namespace="+cluster.System, "delete", "configmap", "leasehold-limits", "--ignore-not-found")
	})
	t.repairs(dir, "NamespaceLimit")
	t.Kubectl("--namespace="+cluster.System, "delete", "configmap", "leasehold-limits")

	agent := t.Agent(t.Node(1))
	t.Step("the agent of %s is frozen", t.Node(1).Name)
	t.Freeze(agent)
	t.repairs(dir, "AgentNotReady")

	t.Step("there is no manager while its certificate expires")
	t.WithoutManager()
	t.expireCertificate()
	t.repairs(dir, "ManagerDown", "CertificateExpired")

	t.Step("there is no manager while the webhook's CA is removed")
	t.WithoutManager()
	t.Kubectl("patch", "mutatingwebhookconfiguration", cluster.Manager, "--type=json", "-p",
		`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	t.repairs(dir, "ManagerDown", "WebhookCA")
}

// pluginDir returns a directory with leasectl as kubectl's plugin.
func (t *Test) pluginDir() string {
	dir := t.TempDir()
	t.Must(os.Symlink(t.Cluster.Leasectl(), filepath.Join(dir, "kubectl-leasehold")))
	return dir
}

// findings returns what `kubectl leasehold doctor` finds. A check that could not be made is an
// error.
func (t *Test) findings(dir string) ([]doctorFinding, error) {
	out, err := t.shell(dir, `PATH=$PWD:$PATH; kubectl leasehold doctor -o json 2>errors || test $? = 1`)
	var report struct {
		Findings  []doctorFinding
		Unchecked []struct{ Check, Error string }
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &report)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if len(report.Unchecked) > 0 {
		return nil, fmt.Errorf("not checked: %+v", report.Unchecked)
	}
	return report.Findings, nil
}

// healthy waits until doctor finds nothing.
func (t *Test) healthy(dir string) {
	t.Eventually(2*time.Minute, "doctor finds nothing", func() error {
		found, err := t.findings(dir)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("it finds %+v", found)
		}
		return err
	})
}

// repairs waits until doctor finds all reasons, runs the commands that it prints, and waits until
// it finds nothing.
func (t *Test) repairs(dir string, reasons ...string) {
	t.repair(dir, reasons...)
	t.healthy(dir)
	t.Step("doctor finds nothing")
}

// repair waits until doctor finds all reasons, and runs the commands that it prints.
func (t *Test) repair(dir string, reasons ...string) {
	var lines []string
	t.Eventually(90*time.Second, fmt.Sprintf("doctor finds %q", reasons), func() error {
		found, err := t.findings(dir)
		text := fmt.Sprintf("%+v", found)
		lines = nil
		for _, reason := range reasons {
			if !strings.Contains(text, "{Reason:"+reason+" ") {
				return fmt.Errorf("%s is not among %s, %w", reason, text, err)
			}
		}
		for _, f := range found {
			t.Step("%s: %s: %s\n    %s", f.Reason, f.Subject, f.What, strings.Join(f.Repair, "\n    "))
			lines = append(lines, f.Repair...)
		}
		return nil
	})
	if out, err := t.shell(dir, "PATH=$PWD:$PATH; "+strings.Join(lines, "\n")); err != nil {
		t.Fatalf("the commands of doctor: %v\n%s", err, out)
	}
}

// doctorScheduler has a scheduler that ignores nominations, although --schedulers names it.
func doctorScheduler(t *Test) {
	const scheduler = "e2e-scheduler"
	dir, one, two := t.pluginDir(), t.Node(1), t.Node(2)
	t.Kubectl("--namespace="+cluster.System, "patch", "deployment", cluster.Manager, "--type=strategic", "-p",
		`{"spec":{"template":{"spec":{"containers":[{"name":"manager","args":["--schedulers","default-scheduler,`+
			scheduler+`"]}]}}}}`)
	t.Cleanup(func() {
		t.Must(t.Cluster.Apply(t.Ctx))
		t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	})
	t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))

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
	t.bind(s, before, two)
	elsewhere := s.ReadyBut(before)
	t.repair(dir, "NominationsIgnored")
	t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	t.published(elsewhere)
	t.Step("the manager uses node affinity for it: it finds the node")
	s.Delete(elsewhere)
	t.bind(s, elsewhere, two)
	t.Kept(elsewhere, s.ReadyBut(elsewhere))
	t.healthy(dir)
}

// bind does what a scheduler does for the pods of a set that are not among old: it binds them to a
// node.
func (t *Test) bind(s *Set, old Pods, n *cluster.Node) {
	t.Eventually(time.Minute, "the pods of "+s.Name+" are bound", func() error {
		pods := s.Pods()
		bound := 0
		for name, p := range pods {
			switch {
			case p.UID == old[name].UID:
			case p.Spec.NodeName != "":
				bound++
			case len(p.Spec.SchedulingGates) == 0:
				binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: t.NS, Name: name, UID: p.UID},
					Target: corev1.ObjectReference{Kind: "Node", Name: n.Name}}
				if err := t.Client.CoreV1().Pods(t.NS).Bind(t.Ctx, binding, metav1.CreateOptions{}); err != nil {
					return err
				}
			}
		}
		if bound != s.size {
			return fmt.Errorf("%d of %d are", bound, s.size)
		}
		return nil
	})
}

// expireCertificate replaces the manager's certificates by one that has expired.
func (t *Test) expireCertificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	t.Must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter: time.Now().Add(-time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	t.Must(err)
	private, err := x509.MarshalECPrivateKey(key)
	t.Must(err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	own := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	secrets := t.Client.CoreV1().Secrets(cluster.System)
	s, err := secrets.Get(t.Ctx, cluster.Manager, metav1.GetOptions{})
	t.Must(err)
	s.Data = map[string][]byte{"ca.crt": cert, "ca.key": own, "tls.crt": cert, "tls.key": own}
	_, err = secrets.Update(t.Ctx, s, metav1.UpdateOptions{})
	t.Must(err)
}

// bundle plants secrets where operators have them, and looks for them in the archive of `kubectl
// leasehold bundle`.
func bundle(t *Test) {
	const planted = "planted-secret-7d3f"
	dir := t.pluginDir()
	set := t.Echoserver("secret", t.Node(1), 1, func(template *corev1.PodTemplateSpec) {
		c := &template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "PASSWORD", Value: planted})
		template.Annotations["example.com/token"] = planted
	})
	t.published(set.Pods())
	for _, namespace := range []string{t.NS, cluster.System} {
		t.Kubectl("--namespace="+namespace, "create", "secret", "generic", "planted", "--from-literal=key="+planted)
		t.Cleanup(func() { t.Kubectl("--namespace="+namespace, "delete", "secret", "planted", "--ignore-not-found") })
	}
	t.Kubectl("--namespace="+cluster.System, "annotate", "daemonset", cluster.Agent, "example.com/token="+planted)
	t.Cleanup(func() {
		t.Kubectl("--namespace="+cluster.System, "annotate", "daemonset", cluster.Agent, "example.com/token-")
	})
	secret, err := t.Client.CoreV1().Secrets(cluster.System).Get(t.Ctx, cluster.Manager, metav1.GetOptions{})
	t.Must(err)
	if out, err := t.shell(dir, "PATH=$PWD:$PATH; kubectl leasehold bundle --file=bundle.tar.gz"); err != nil {
		t.Fatalf("kubectl leasehold bundle: %v\n%s", err, out)
	}
	f, err := os.Open(filepath.Join(dir, "bundle.tar.gz"))
	t.Must(err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	t.Must(err)
	needles := map[string][]byte{"as text": []byte(planted)}
	for i := range 3 { // wherever it begins in what was encoded
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", i) + planted))
		needles[fmt.Sprint("encoded, from byte ", i)] = []byte(text[4:20])
	}
	for _, key := range []string{"ca.key", "tls.key"} {
		needles["the manager's "+key] = []byte(base64.StdEncoding.EncodeToString(secret.Data[key])[40:80])
	}
	var all []byte
	files := 0
	for archive := tar.NewReader(zip); ; files++ {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		t.Must(err)
		content, err := io.ReadAll(archive)
		t.Must(err)
		all = append(all, content...)
		for what, needle := range needles {
			if bytes.Contains(content, needle) {
				t.Errorf("%s contains the secret, %s", head.Name, what)
			}
		}
		if strings.HasSuffix(head.Name, "errors.txt") {
			for line := range strings.Lines(string(content)) {
				// A manager may have been replaced meanwhile.
				if !strings.HasPrefix(line, "logs/leasehold-manager-") || !strings.Contains(line, "NotFound") {
					t.Errorf("what could not be read: %s", line)
				}
			}
		}
	}
	for name := range set.Pods() {
		if !bytes.Contains(all, []byte(name)) {
			t.Errorf("pod %s is in none of the %d files", name, files)
		}
	}
	t.Step("%d files, %d bytes, without the secret", files, len(all))
}
