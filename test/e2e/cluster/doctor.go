package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// fault is a fault of a cluster without nodes: the commands that make it, what `kubectl leasehold
// doctor` has to find, and what happens meanwhile in the place of the parts that do not run here.
type fault struct {
	reason, plant string
	decided       string // the commands of somebody who has decided; "" if doctor prints a repair
	meanwhile     string // begins when the repair begins
	isLeft        bool   // only a manager can finish the repair
}

// applied is the decision that leasehold is to be as its manifests say.
const applied = `kubectl apply -k daemonset/overlays/replace`

const statefulSet = `kubectl -n default delete statefulset db --ignore-not-found
kubectl apply -f - <<EOF
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"db","namespace":"default","annotations":{%s}},
"spec":{"serviceName":"db","replicas":0,"selector":{"matchLabels":{"app":"db"}},"template":{"metadata":
{"labels":{"app":"db"},"annotations":{%s}},"spec":{"containers":[{"name":"c","image":"c"}]}}}}
EOF
`

// corrected is the decision that the annotation was meant.
var corrected = fmt.Sprintf(statefulSet, "", `"io.kubernetes.cri/reserved-ip-duration":"1h"`)

// lease writes a node's Lease with a time of its own.
const lease = `kubectl apply -f - <<EOF
{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node1","namespace":"kube-node-lease"},
"spec":{"holderIdentity":"node1","renewTime":"$(date -u -d "$1" +%FT%T.000000Z)"}}
EOF
`

// asAgent defines the command agent: kubectl as the agent of node1, which alone may write what the
// store of the node contains. It is in the group of administrators because kubectl reads what it
// patches, which the agent need not.
const asAgent = `agent() {
kubectl --as=system:serviceaccount:leasehold-system:leasehold-agent --as-group=system:masters \
--as-user-extra=authentication.kubernetes.io/node-name=node1 \
--as-user-extra=authentication.kubernetes.io/node-uid=u "$@"
}
`

var faults = []fault{
	{reason: "CRDMissing", plant: `kubectl delete crd ipreservations.ipam.leasehold.dev`, decided: applied},
	{reason: "KruiseCRDLeft", plant: `kubectl patch crd persistentpodstates.apps.kruise.io \
--type=merge -p '{"spec":{"conversion":{"strategy":"Webhook",
"webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"kruise-system",
"name":"kruise-webhook-service"}}}}}}'`, decided: `kubectl patch crd persistentpodstates.apps.kruise.io \
--type=merge -p '{"spec":{"conversion":{"strategy":"None","webhook":null}}}'`},
	{reason: "PolicyMissing", plant: `kubectl delete validatingadmissionpolicybinding leasehold-agent`,
		decided: applied},
	{reason: "PolicyMissing", plant: `kubectl delete \
validatingadmissionpolicy leasehold-manager leasehold-manager-webhooks`, decided: applied},
	{reason: "WebhookMissing", plant: `kubectl delete mutatingwebhookconfiguration leasehold-manager`,
		decided: applied},
	{reason: "AgentBlind", plant: `kubectl -n leasehold-system patch ds leasehold-agent -p \
'{"spec":{"template":{"spec":{"hostPID":false}}}}'`, decided: applied},
	{reason: "AgentBlind", plant: `kubectl -n leasehold-system patch ds leasehold-agent -p '{"spec":{"template":{"spec":
{"containers":[{"name":"agent","securityContext":{"capabilities":{"add":["NET_ADMIN"]}}}]}}}}'`,
		decided: applied},
	{reason: "AnnotationUnread", plant: fmt.Sprintf(statefulSet, "", `"io.kubernetes.cri/reserved-ip-duratoin":"10"`),
		decided: corrected},
	{reason: "AnnotationUnread", plant: fmt.Sprintf(statefulSet, "", `"reserved-ip-duration":"1h"`),
		decided: corrected},
	{reason: "AnnotationUnread", plant: fmt.Sprintf(statefulSet, `"io.kubernetes.cri/reserved-ip-duration":"1h"`, ""),
		decided: corrected},
	{reason: "NamespaceLimit", plant: asAgent + `agent apply -f - <<EOF
{"apiVersion":"ipam.leasehold.dev/v1alpha1","kind":"NodeAddressPool","metadata":{"name":"node1"}}
EOF
agent patch nap node1 --subresource=status --type=merge -p '{"status":{"size":3,"bound":0,"held":2,"free":1,
"networks":[{"name":"n","size":3,"bound":0,"held":2,"free":1}]}}'
for i in 0 1; do
agent create -f - <<EOF
{"apiVersion":"ipam.leasehold.dev/v1alpha1","kind":"IPReservation","metadata":{"name":"r$i","namespace":"default"},
"spec":{"podName":"db-$i","nodeName":"node1","nodeUID":"u"}}
EOF
agent patch ipr r$i --subresource=status --type=merge \
-p '{"status":{"id":"00000000000000'$i'0","state":"Held","addresses":[{"network":"n","interface":"eth0",
"address":"10.0.0.'$i'"}],"addressList":"10.0.0.'$i'","window":"1h"}}'
done`, decided: `kubectl leasehold release --namespace=default --node=node1 --held --yes`, meanwhile: asAgent + `for i in 0 1; do
until test "$(kubectl get ipr r$i -o 'jsonpath={.spec.release}')" = 00000000000000${i}0; do sleep 0.2; done
agent delete ipr r$i
done`},
	{reason: "PodWithoutLease", plant: asAgent + `agent patch nap node1 --subresource=status --type=merge \
-p '{"status":{"networks":[{"name":"n","bound":0,"held":0,"active":"False","reason":"PodWithoutLease"}]}}'`,
		decided: asAgent + `agent patch nap node1 --subresource=status --type=merge \
-p '{"status":{"networks":[{"name":"n","bound":0,"held":0,"active":"True"}]}}'`},
	{reason: "LimitsInvalid", plant: `kubectl -n leasehold-system create configmap leasehold-limits \
--from-literal=maxHeld=some`,
		decided: `kubectl -n leasehold-system patch configmap leasehold-limits -p '{"data":{"maxHeld":"5"}}'`},
	{reason: "ClockOff", plant: "set -- '-90 seconds'\n" + lease, decided: "set -- now\n" + lease},
	{reason: "ManagerDown", plant: `kubectl -n leasehold-system scale deployment leasehold-manager --replicas=0`,
		decided: `kubectl -n leasehold-system scale deployment leasehold-manager --replicas=2`, isLeft: true},
	{reason: "CertificateExpired", plant: `true`, isLeft: true}, // no manager has made one
	{reason: "AgentMissing", plant: `kubectl -n leasehold-system delete ds leasehold-agent`, decided: applied},
}

// checkDoctor plants faults, and checks that `kubectl leasehold doctor` finds each, and finds it no
// more after its commands have run. Where it prints what there is to decide instead, the commands
// of somebody who has decided run.
func (c *Cluster) checkDoctor(ctx context.Context) error {
	program, err := c.buildProgram(ctx, leasectl)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "doctor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, to := range map[string]string{"kubectl-leasehold": program, "kubectl": c.Kubectl()} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	shell := func(script string) (string, error) {
		cmd := exec.CommandContext(ctx, "sh", "-ec", script)
		cmd.Dir = c.Repo
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig())
		return runCmd(cmd)
	}
	// Nothing runs here, so that no manager is ready or has made a certificate.
	healthy, err := c.findings(shell)
	if err != nil {
		return err
	}
	for _, f := range healthy {
		if f.Reason != "ManagerDown" && f.Reason != "CertificateExpired" {
			return fmt.Errorf("doctor finds without a fault: %+v", f)
		}
	}
	var errs []error
	for _, f := range faults {
		if err := c.checkFault(shell, f); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.reason, err))
		}
	}
	return errors.Join(errs...)
}

// finding is what doctor prints.
type finding struct {
	Reason, Subject, What, Why, Decide string
	Repair                             []string
}

func (c *Cluster) findings(shell func(string) (string, error)) ([]finding, error) {
	out, err := shell("kubectl leasehold doctor --nodes=false -o json || test $? = 1")
	var report struct {
		Findings  []finding
		Unchecked []struct{ Check, Error string }
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &report)); err != nil {
		return nil, err
	}
	if len(report.Unchecked) > 0 && !slices.ContainsFunc(report.Findings, func(f finding) bool {
		return f.Reason == "CRDMissing"
	}) {
		return nil, fmt.Errorf("not checked: %+v", report.Unchecked)
	}
	return report.Findings, nil
}

func (c *Cluster) checkFault(shell func(string) (string, error), f fault) error {
	if out, err := shell(f.plant); err != nil {
		return fmt.Errorf("planting it: %w: %s", err, out)
	}
	before, err := c.findings(shell)
	if err != nil {
		return err
	}
	lines := []string{f.decided}
	isFound := false
	for _, found := range before {
		if found.Reason != f.reason {
			continue
		}
		isFound = true
		c.logf("%s: %s: %s\n    %s%s", found.Reason, found.Subject, found.What, found.Decide,
			strings.Join(found.Repair, "\n    "))
		if (found.Decide == "") != (f.decided == "") {
			return fmt.Errorf("doctor prints %+v, and %q was decided", found, f.decided)
		}
		lines = append(lines, found.Repair...)
	}
	if !isFound {
		return fmt.Errorf("not found; doctor finds %+v", before)
	}
	done := make(chan error, 1)
	go func() {
		_, err := shell(f.meanwhile)
		done <- err
	}()
	out, err := shell(strings.Join(lines, "\n"))
	if err := errors.Join(err, <-done); err != nil {
		return fmt.Errorf("repairing it: %w: %s", err, out)
	}
	after, err := c.findings(shell)
	if err != nil {
		return err
	}
	for _, found := range after {
		if found.Reason == f.reason && !f.isLeft {
			return fmt.Errorf("%s is found after its repair: %s", found.Subject, found.What)
		}
	}
	return nil
}
