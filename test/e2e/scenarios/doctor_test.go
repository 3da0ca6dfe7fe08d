package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// doctor has `kubectl leasehold doctor` find nothing in a healthy cluster, and each of several
// faults. Its commands repair them, or it says what there is to decide, and the scenario decides.
func doctor(t *Test) {
	d := t.clusterDoctor()
	t.Step("kubectl leasehold doctor, and leasectl doctor on each node, find nothing")
	d.healthy()
	for _, n := range t.ownNodes() {
		t.exec(n, t.Cluster.Leasectl(), "doctor")
	}

	t.Step("kubectl leasehold bundle reads every node")
	out, err := t.shell(t.TempDir(), "kubectl leasehold bundle --file=b.tar.gz; tar xzvf b.tar.gz; "+
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
	d.repair("AgentNotReady")
	d.healthy()

	t.Step("there is no manager")
	back := t.WithoutManager()
	d.decide("ManagerDown")
	back()
	d.healthy()

	t.objectsDoctor(d)
	t.nodeDoctor(d, t.Node(1))
	t.addressesDoctor(d, t.Node(1))

	set := t.Echoserver("echoserver", t.Node(2), 1)
	t.published(set.Ready())
	t.storeDoctor(d, t.Node(2), set.Ready())
}

// objectsDoctor has doctor find rights that were taken away, and a webhook that nobody reaches.
func (t *Test) objectsDoctor(d doctorOf) {
	for _, c := range []struct{ what, object, reason string }{
		{"the agents have no rights", "clusterrolebinding/leasehold-agent", "ObjectMissing"},
		{"the webhook has no endpoints", "service/leasehold-manager", "WebhookWithoutEndpoints"},
	} {
		t.Step("%s", c.what)
		before := t.Kubectl("apply", "view-last-applied", "-n", cluster.System, c.object, "-o", "json")
		t.Cleanup(func() { t.apply(before) })
		if c.reason == "ObjectMissing" {
			t.Kubectl("delete", c.object)
		} else {
			t.Kubectl("patch", "-n", cluster.System, c.object, "-p", `{"spec":{"selector":{"app":"none"}}}`)
		}
		d.decide(c.reason)
		t.Kubectl("delete", "--ignore-not-found", "-n", cluster.System, c.object)
		t.apply(before)
		d.healthy()
	}
}

// nodeDoctor has doctor find an agent without its image, and a node that is out of reach, each
// under one name.
func (t *Test) nodeDoctor(d doctorOf, n *cluster.Node) {
	agent := t.Agent(n)
	t.Step("the image of the agent of %s is removed, and its pod deleted", n.Name)
	t.Must(inspect.RemoveImage(t.Ctx, n.Root(), agent.Spec.Containers[0].Image))
	t.Kubectl("delete", "pod", "-n", cluster.System, agent.Name)
	d.decide("AgentImageMissing")
	d.onlyOne(n)
	t.Must(n.ImportImages(t.Ctx, t.Cluster.Images()))
	d.healthy()

	t.Step("the kubelet of %s is stopped", n.Name)
	back := t.withoutKubelet(n)
	d.decide("NodeNotReady")
	d.onlyOne(n)
	back()
	d.healthy()
}

// onlyOne checks that doctor has one finding, and that it is about the node.
func (d doctorOf) onlyOne(n *cluster.Node) {
	found, err := d.examine()
	d.Must(err)
	if len(found) != 1 || !strings.Contains(found[0].Subject, n.Name) {
		d.Fatalf("doctor finds %+v; want one finding about %s", found, n.Name)
	}
}

// addressesDoctor has doctor find a configuration that no ADD can use, and a network whose
// addresses were leaked by host-local.
func (t *Test) addressesDoctor(d doctorOf, n *cluster.Node) {
	network := five(t.NS, "bridge", n)
	t.Step("%s has a network of five addresses, which files of former containers name", n.Name)
	dir := n.Disk("/var/lib/cni/networks/" + network.Name)
	t.Must(os.MkdirAll(dir, 0o755))
	for i, a := 0, network.Subnets[0].Addr().Next().Next(); i < 5; i, a = i+1, a.Next() {
		t.Must(os.WriteFile(filepath.Join(dir, a.String()), fmt.Appendf(nil, "gone%d\r\neth0", i), 0o600))
	}
	t.Networks(n, network)
	t.Cleanup(func() { t.Must(os.RemoveAll(dir)) })
	d.decide("PoolFull")

	t.Step("its configuration has no ranges")
	text := `{"cniVersion":"1.0.0","name":"` + network.Name + `","type":"bridge","ipam":{"type":"leasehold"}}`
	t.Must(n.SetConfiguration(t.Ctx, network.Name, text))
	d.decide("ConfigurationRefused")
	t.Must(n.SetNetworks(t.Ctx, n.DefaultNetwork()))
	d.healthy()
}

// storeDoctor has doctor find that the store of a node is lost, whose agent does nothing. The pods
// live.
func (t *Test) storeDoctor(d doctorOf, n *cluster.Node, pods Pods) {
	t.Step("the store of %s is removed", n.Name)
	before := t.Leases(n)
	resume := t.Freeze(t.Agent(n))
	t.Must(os.Remove(n.Disk("/var/lib/leasehold/leases.db")))
	d.repair("StoreLost")
	after := t.Leases(n)
	resume()
	d.healthy()
	for name, p := range pods {
		isOf := func(l cli.Row) bool { return l.Pod == name && l.State == "Bound" && l.Address == p.Status.PodIP }
		if !slices.ContainsFunc(before, isOf) || !slices.ContainsFunc(after, isOf) {
			t.Fatalf("before %+v, after the repair %+v; want %s of %s in both", before, after, p.Status.PodIP, name)
		}
	}
}

// doctorOf is `kubectl leasehold doctor`.
type doctorOf struct{ *Test }

func (t *Test) clusterDoctor() doctorOf { return doctorOf{t} }

// examine returns the findings, and an error if a check could not be made.
func (d doctorOf) examine() ([]cli.Finding, error) {
	out, err := d.shell(d.TempDir(), `kubectl leasehold doctor -o json 2>errors || test $? = 1`)
	var report cli.Report
	if err := errors.Join(err, json.Unmarshal([]byte(out), &report)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if len(report.Unchecked) > 0 {
		return report.Findings, fmt.Errorf("not checked: %+v", report.Unchecked)
	}
	return report.Findings, nil
}

// healthy waits until doctor finds nothing.
func (d doctorOf) healthy() {
	d.Eventually("doctor finds nothing", func() error {
		found, err := d.examine()
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("it finds %+v", found)
		}
		return err
	})
}

// repair waits until doctor finds a reason, and runs the commands that it prints for it.
func (d doctorOf) repair(reason string) {
	var lines []string
	for _, f := range d.finds(reason) {
		if len(f.Repair) == 0 {
			d.Fatalf("%s has no repair: %s", f.Reason, f.Decide)
		}
		for _, line := range f.Repair {
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if out, err := d.shell(d.Cluster.Repo, strings.Join(lines, "\n")); err != nil {
		d.Fatalf("the commands of doctor: %v\n%s", err, out)
	}
}

// decide waits until doctor finds a reason, and checks that it prints what there is to decide, and
// no command as a repair.
func (d doctorOf) decide(reason string) {
	for _, f := range d.finds(reason) {
		if len(f.Repair) > 0 || f.Decide == "" {
			d.Fatalf("%s has a repair or nothing to decide: %+v", reason, f)
		}
	}
}

// finds waits until doctor finds a reason, and returns the findings.
func (d doctorOf) finds(reason string) (found []cli.Finding) {
	d.Eventually("doctor finds "+reason, func() error {
		all, err := d.examine()
		found = slices.DeleteFunc(slices.Clone(all), func(f cli.Finding) bool { return f.Reason != reason })
		if len(found) == 0 {
			return fmt.Errorf("it finds %+v, %w", all, err)
		}
		return nil
	})
	for _, f := range found {
		d.Step("%s: %s: %s\n    %s%s", f.Reason, f.Subject, f.What, f.Decide, strings.Join(f.Repair, "\n    "))
	}
	return found
}
