package scenarios

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

const (
	cniConf = "/etc/cni/net.d"
	cniBin  = "/opt/cni/bin"
	// reportedWithin is how long it may take until a node that retains no addresses is reported.
	reportedWithin = time.Minute
)

// retentionOff takes leasehold out of use in the ways in which it happens, one after the other.
func retentionOff(t *Test) {
	n := t.Node(2)
	network := n.DefaultNetwork()
	conf := fmt.Sprintf("%s/10-%s.conflist", cniConf, network.Name)
	plugin := cniBin + "/leasehold"
	stock := func(kind string) string {
		list, err := cluster.Network{Name: network.Name, Type: kind, Subnets: network.Subnets, Stock: true,
			IPAM: map[string]any{"type": "host-local"}}.Conflist()
		t.Must(err)
		return string(list)
	}
	onNode := func(script string) {
		t.Helper()
		_, err := n.Machine().Run(t.Ctx, "sh", "-ec", script)
		t.Must(err)
	}
	put := func(path, content string) { t.Must(os.WriteFile(n.Root()+path, []byte(content), 0o644)) }
	configure := func() { t.Must(n.SetNetworks(network)) }
	reinstall := func() { t.RestartAgent(n) }
	// decided runs what somebody has decided about a finding of leasectl doctor that has no repair.
	d := t.nodeDoctor(n)
	decided := func(reason string, repair func()) func() {
		return func() {
			d.decide(reason)
			repair()
		}
	}

	const otherConf = "/etc/cni/other.d"
	restart := func(confDir string) {
		t.Must(n.Stop(t.Ctx, cluster.Containerd))
		t.Must(n.StartContainerdWithDirs(t.Ctx, confDir, cniBin))
	}

	t.Step("an echoserver runs on %s", n.Name)
	set := t.Echoserver("echoserver", n, 1)
	pod := set.Ready()["echoserver-0"]
	t.retentionIs(n, network.Name, 1)
	t.Cleanup(func() {
		restart(cniConf)
		configure()
		reinstall()
		t.retentionIs(n, network.Name, 1)
	})
	for _, c := range []struct {
		what   string
		reason string
		words  []string
		plant  func()
		repair func()
	}{
		{"a configuration names host-local", "HostLocalNamed", []string{conf, "host-local"},
			func() { put(conf, stock("bridge")) },
			func() {
				d.repair("HostLocalNamed")
				configure() // the same without a backup
			}},
		{"a package has a file of the plugin's name", "BinaryReplaced", []string{conf, plugin},
			func() {
				onNode("d=$(mktemp -d); cp " + cniBin + "/host-local $d/leasehold; touch -d 2020-01-01 $d/leasehold; " +
					"tar -C $d -cf $d/package.tar leasehold; " +
					"tar -C " + cniBin + " --unlink-first -xpf $d/package.tar; rm -r $d")
			}, reinstall},
		{"the plugin is in a directory that the runtime does not use", "BinaryMissing", []string{conf, cniBin},
			func() { onNode("mkdir -p /usr/libexec/cni && mv " + plugin + " /usr/libexec/cni/") },
			func() { reinstall(); onNode("rm /usr/libexec/cni/leasehold") }},
		{"another IPAM plugin is configured before it", "OtherIPAM",
			[]string{cniConf + "/05-other.conf", "whereabouts"},
			func() {
				put(cniConf+"/05-other.conf", `{"cniVersion":"0.3.1","name":"`+network.Name+
					`","type":"bridge","ipam":{"type":"whereabouts","range":"10.9.0.0/16"}}`)
			}, decided("OtherIPAM", func() { onNode("rm " + cniConf + "/05-other.conf") })},
		{"the configuration is not JSON", "InvalidConfiguration", []string{conf},
			func() { put(conf, "name: "+network.Name) }, decided("InvalidConfiguration", configure)},
		{"the configuration is removed", "NoConfiguration", []string{cniConf},
			func() { t.Must(os.Remove(n.Root() + conf)) }, decided("NoConfiguration", configure)},
		{"the runtime uses another directory of configurations, and the pod is recreated", "PodWithoutLease",
			[]string{conf, "--cni-conf-dir"},
			func() {
				t.Must(os.MkdirAll(n.Root()+otherConf, 0o755))
				put(otherConf+"/10-flannel.conflist", stock("flannel"))
				t.Sleep(6 * time.Second) // pods that start within 5 s after a change are not counted
				restart(otherConf)
				set.Recreate()
			},
			func() {
				restart(cniConf)
				set.Recreate()
			}},
	} {
		t.Step("%s", c.what)
		began := time.Now()
		c.plant()
		t.Within(reportedWithin, "it is reported as "+c.reason, func() error {
			if is, found := t.retention(n); !found || is != 0 {
				return fmt.Errorf("leasehold_retention_active is %v, found: %v", is, found)
			}
			return errors.Join(t.reported(n.Name, metav1.NamespaceDefault, began, c.reason, c.words),
				t.reported(pod.Name, t.NS, began, c.reason, c.words))
		})
		t.Step("reported after %s; the agent is ready", time.Since(began).Round(time.Second))
		t.Agent(n)
		repaired := time.Now()
		c.repair()
		t.retentionIs(n, network.Name, 1)
		t.WaitNode(n, repaired)
	}
}

// retention returns the smallest value of the node's metric.
func (t *Test) retention(n *cluster.Node) (value float64, found bool) {
	for _, m := range t.AgentMetrics(n)["leasehold_retention_active"].GetMetric() {
		if v := m.GetGauge().GetValue(); !found || v < value {
			value, found = v, true
		}
	}
	return value, found
}

// retentionIs waits until the metric of a network has a value.
func (t *Test) retentionIs(n *cluster.Node, network string, want float64) {
	t.Eventually(fmt.Sprintf("leasehold_retention_active of %s is %v", network, want), func() error {
		for _, m := range t.AgentMetrics(n)["leasehold_retention_active"].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "network" && l.GetValue() == network && m.GetGauge().GetValue() == want {
					return nil
				}
			}
		}
		is, found := t.retention(n)
		return fmt.Errorf("it is %v, found: %v", is, found)
	})
}

// reported returns an error if no Event about a node or pod says since a moment that addresses are
// not retained, for the reason and with the words.
func (t *Test) reported(name, namespace string, since time.Time, reason string, words []string) error {
	var texts []string
	for _, e := range t.offEvents(namespace, name, since) {
		texts = append(texts, e.Message)
		if strings.Contains(e.Message, "not retained: "+reason+": ") && containsAll(e.Message, words) {
			return nil
		}
	}
	return fmt.Errorf("%s: %d Events: %q", name, len(texts), texts)
}

// offEvents returns the Events about a node or pod, since a moment, which say that addresses are
// not retained or that this is not known.
func (t *Test) offEvents(namespace, name string, since time.Time) []corev1.Event {
	list, err := t.Client.CoreV1().Events(namespace).List(t.Ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + name})
	t.Must(err)
	var found []corev1.Event
	for _, e := range list.Items {
		isOff := e.Reason == "RetentionInactive" || e.Reason == "RetentionUnknown"
		if isOff && !e.EventTime.Time.Before(since) {
			found = append(found, e)
		}
	}
	return found
}
