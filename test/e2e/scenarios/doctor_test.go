package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// doctorFinding is a finding of doctor as its JSON has it.
type doctorFinding struct {
	Reason, Subject, What, Why, Decide string
	Repair                             []string
}

// doctor has `kubectl leasehold doctor` find nothing in a healthy cluster, and each of several
// faults. Its commands repair them, or it says what there is to decide, and the scenario decides.
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

	t.Step("kubectl leasehold bundle reads every node")
	out, err := t.shell(dir, "PATH=$PWD:$PATH; kubectl leasehold bundle --file=b.tar.gz; tar xzvf b.tar.gz; "+
		"cat leasehold/errors.txt; test ! -s leasehold/errors.txt")
	if err != nil {
		t.Fatalf("kubectl leasehold bundle: %v\n%s", err, out)
	}
	for _, file := range []string{"doctor.json", "objects/reservations.json", "nodes/" + t.nodes[0] + "/history.json",
		"nodes/" + t.nodes[1] + "/list.json"} {
		if !strings.Contains(out, "leasehold/"+file) {
			t.Errorf("the bundle has no %s: %s", file, out)
		}
	}

	agent := t.Agent(t.Node(1))
	t.Step("the agent of %s is frozen", t.Node(1).Name)
	t.Freeze(agent)
	t.repairs(dir, "AgentNotReady")

	t.Step("there is no manager while its certificate expires")
	t.WithoutManager()
	t.expireCertificate()
	t.decide(dir, "ManagerDown")
	t.repair(dir, "CertificateExpired")
	t.withManager(dir)

	t.Step("there is no manager while the webhook's CA is removed")
	t.WithoutManager()
	t.Kubectl("patch", "mutatingwebhookconfiguration", cluster.Manager, "--type=json", "-p",
		`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	t.decide(dir, "ManagerDown")
	t.repair(dir, "WebhookCA")
	t.withManager(dir)

	set := t.Echoserver("echoserver", t.Node(2), 1)
	t.published(set.Ready())
	t.storeDoctor(dir, t.Node(2), set.Ready())
}

// storeDoctor has doctor find that the store of a node is lost, whose agent does nothing. The pods
// live.
func (t *Test) storeDoctor(dir string, n *cluster.Node, pods Pods) {
	t.Step("the store of %s is removed", n.Name)
	before, _ := t.Leases(n)
	resume := t.Freeze(t.Agent(n))
	t.Must(os.Remove(n.Disk("/var/lib/leasehold/leases.db")))
	t.repair(dir, "StoreLost")
	after, _ := t.Leases(n)
	resume()
	t.healthy(dir)
	for name, p := range pods {
		isOf := func(l inspect.Lease) bool { return l.Pod == name && l.State == "Bound" && l.Address == p.Status.PodIP }
		if !slices.ContainsFunc(before, isOf) || !slices.ContainsFunc(after, isOf) {
			t.Fatalf("before %+v, after the repair %+v; want %s of %s in both", before, after, p.Status.PodIP, name)
		}
	}
}

// repairOnNode waits until leasectl doctor finds a reason on a node, runs the commands that it
// prints there, and waits until it finds the reason no more.
func (t *Test) repairOnNode(n *cluster.Node, reason string) {
	for _, f := range t.foundOnNode(n, reason) {
		if len(f.Repair) == 0 {
			t.Fatalf("%s has no repair: %s", f.Reason, f.Decide)
		}
		for _, line := range f.Repair {
			if out, err := n.Machine().Run(t.Ctx, "sh", "-ec", t.leasectlPath()+line); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
	}
	t.Eventually(time.Minute, "leasectl doctor finds it no more", func() error {
		if found := t.examineNode(n, reason); len(found) > 0 {
			return fmt.Errorf("it finds %+v", found)
		}
		return nil
	})
}

// foundOnNode waits until leasectl doctor finds a reason on a node, and returns the findings.
func (t *Test) foundOnNode(n *cluster.Node, reason string) (found []doctorFinding) {
	t.Eventually(time.Minute, "leasectl doctor finds "+reason, func() error {
		if found = t.examineNode(n, reason); len(found) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	for _, f := range found {
		t.Step("%s: %s: %s\n    %s%s", f.Reason, f.Subject, f.What, f.Decide, strings.Join(f.Repair, "\n    "))
	}
	return found
}

// examineNode returns what leasectl doctor finds on a node for a reason.
func (t *Test) examineNode(n *cluster.Node, reason string) []doctorFinding {
	out, err := n.Machine().Run(t.Ctx, "sh", "-ec", t.leasectlPath()+"leasectl doctor -o json || test $? -le 2")
	t.Must(err)
	var report struct{ Findings []doctorFinding }
	t.Must(json.Unmarshal(out, &report))
	return slices.DeleteFunc(report.Findings, func(f doctorFinding) bool { return f.Reason != reason })
}

// leasectlPath returns the line of a shell with which it finds leasectl.
func (t *Test) leasectlPath() string {
	return "PATH=" + filepath.Dir(t.Cluster.Leasectl()) + ":$PATH\n"
}

// pluginDir returns a directory with leasectl as kubectl's plugin, and with an ssh that runs
// commands on the nodes, which have no SSH server.
func (t *Test) pluginDir() string {
	dir := t.TempDir()
	t.Must(os.Symlink(t.Cluster.Leasectl(), filepath.Join(dir, "kubectl-leasehold")))
	ssh := "#!/bin/sh\ntest $1 = -t && node=$2 && shift 2\ncase $node in\n"
	for _, name := range t.nodes {
		ssh += fmt.Sprintf("%s) exec nsenter --target=%d --all sh -c \"$*\" ;;\n", name, t.Cluster.PID(name))
	}
	t.Must(os.WriteFile(filepath.Join(dir, "ssh"), []byte(ssh+"esac\nexit 255\n"), 0o755))
	return dir
}

// findings returns what `kubectl leasehold doctor` finds, and an error if a check could not be
// made.
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
		return report.Findings, fmt.Errorf("not checked: %+v", report.Unchecked)
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

// repair waits until doctor finds all reasons, and runs the commands that it prints for them.
func (t *Test) repair(dir string, reasons ...string) {
	var lines []string
	for _, f := range t.found(dir, reasons...) {
		if len(f.Repair) == 0 {
			t.Fatalf("%s has no repair: %s", f.Reason, f.Decide)
		}
		for _, line := range f.Repair {
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if out, err := t.shell(t.Cluster.Repo, "PATH="+dir+":$PATH\n"+strings.Join(lines, "\n")); err != nil {
		t.Fatalf("the commands of doctor: %v\n%s", err, out)
	}
}

// decide waits until doctor finds all reasons, and checks that it prints for them what there is to
// decide, and no command as a repair.
func (t *Test) decide(dir string, reasons ...string) {
	for _, f := range t.found(dir, reasons...) {
		if len(f.Repair) > 0 || f.Decide == "" {
			t.Fatalf("%s has a repair or nothing to decide: %+v", f.Reason, f)
		}
	}
}

// found waits until doctor finds all reasons, and returns their findings.
func (t *Test) found(dir string, reasons ...string) (found []doctorFinding) {
	t.Eventually(90*time.Second, fmt.Sprintf("doctor finds %q", reasons), func() error {
		all, err := t.findings(dir)
		found = slices.DeleteFunc(slices.Clone(all), func(f doctorFinding) bool {
			return !slices.Contains(reasons, f.Reason)
		})
		for _, reason := range reasons {
			if !slices.ContainsFunc(found, func(f doctorFinding) bool { return f.Reason == reason }) {
				return fmt.Errorf("%s is not among %+v, %w", reason, all, err)
			}
		}
		return nil
	})
	for _, f := range found {
		t.Step("%s: %s: %s\n    %s%s", f.Reason, f.Subject, f.What, f.Decide, strings.Join(f.Repair, "\n    "))
	}
	return found
}

// withManager scales the manager up again, and waits until doctor finds nothing.
func (t *Test) withManager(dir string) {
	t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, "--replicas=2")
	t.healthy(dir)
}

// managersReplaced waits until a changed Deployment of the manager is rolled out and its former
// replicas have ended, which answer for some seconds after that.
func (t *Test) managersReplaced() {
	t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	t.Eventually(time.Minute, "the former managers end", func() error {
		pods, err := t.Client.CoreV1().Pods(cluster.System).List(t.Ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + cluster.Manager})
		t.Must(err)
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				return fmt.Errorf("%s is ending", p.Name)
			}
		}
		return nil
	})
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
			default:
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
	own, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: cluster.Manager,
		MaxAge: 30 * time.Minute}) // from an hour ago on
	t.Must(err)
	secrets := t.Client.CoreV1().Secrets(cluster.System)
	s, err := secrets.Get(t.Ctx, cluster.Manager, metav1.GetOptions{})
	t.Must(err)
	s.Data = map[string][]byte{"ca.crt": own, "ca.key": key, "tls.crt": own, "tls.key": key}
	_, err = secrets.Update(t.Ctx, s, metav1.UpdateOptions{})
	t.Must(err)
}
