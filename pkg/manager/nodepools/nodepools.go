// Package nodepools writes in NodeAddressPools what agents should read: the spec names the
// reservations, AddressRequests and shared ranges that concern the node. In the status it writes
// that the node has no working agent. It also writes the states of requested addresses for which no
// agent has answered.
package nodepools

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// Setup adds the reconcilers, and what they watch beside reservations and nodes, to a manager that
// has not started. unconfirmed returns since when no agent confirms the reservations of a node, and
// why, according to its NodeAddressPool, and "" if one does.
func Setup(mgr manager.Manager, set *control.Reservations, nodes *control.Nodes) (unconfirmed func(string) string,
	err error) {
	pools := kube.NewInformer(viewPool, nil)
	s := newSpecReconciler(set, pools, mgr.GetClient(), mgr.GetAPIReader())
	a := newAgentReconciler(nodes, pools, mgr.GetClient())
	metrics.Registry.MustRegister(s.sharedMetric, a.metric)
	unconfirmed = func(node string) string {
		if p, found := pools.Get(node); found && !p.unconfirmed.IsZero() {
			return p.unconfirmed.UTC().Format(time.RFC3339) + ": " + p.reason
		}
		return ""
	}
	return unconfirmed, errors.Join(
		control.Watch(mgr, pools, "nodeaddresspools", control.Objects{
			Kind: ipam.GroupVersion.WithKind("NodeAddressPool"), Resource: ipam.NodeAddressPoolResource.Resource}),
		control.Watch(mgr, s.requests, "addressrequests", control.Objects{
			Kind: ipam.GroupVersion.WithKind("AddressRequest"), Resource: ipam.AddressRequestResource.Resource}),
		control.Watch(mgr, s.limits, "limits", control.Objects{
			Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: "configmaps",
			Namespace: kube.LimitsName.Namespace, Field: kube.LimitsField}),
		control.Watch(mgr, a.agents, "agents", control.Objects{
			Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: "pods", Namespace: kube.Namespace,
			Label: "app.kubernetes.io/name=" + kube.AgentName}),
		control.Add(mgr, "node-address-pools", s, true, s.start),
		control.Add(mgr, "agents", a, true, a.start))
}

// A nodePool has the fields of a NodeAddressPool that the manager needs.
type nodePool struct {
	node    string
	version string // the resource version
	ranges  []nodeRange

	reservations, requests, shared digest   // of the spec
	partners                       []string // the nodes in spec.shared

	condition   int // the index of RetentionActive
	status      metav1.ConditionStatus
	reason      string
	unconfirmed time.Time // since when no agent confirms it, by the condition; zero if one does
}

// A digest stands for a part of the spec of a NodeAddressPool.
type digest = [sha256.Size]byte

func digestOf(part any) digest {
	data, _ := json.Marshal(part) // texts and numbers can be encoded
	return sha256.Sum256(data)
}

func viewPool(p *ipam.NodeAddressPool) *nodePool {
	v := &nodePool{node: p.Name, version: p.ResourceVersion, ranges: rangesOf(p),
		reservations: digestOf(p.Spec.Reservations), requests: digestOf(p.Spec.Requests),
		shared: digestOf(p.Spec.Shared)}
	for _, s := range p.Spec.Shared {
		v.partners = append(v.partners, control.Intern(kube.Short(s.NodeName, kube.MaxName)))
	}
	for i, c := range p.Status.Conditions {
		if c.Type == ipam.ConditionRetentionActive {
			v.condition, v.status, v.reason = i, c.Status, control.Intern(c.Reason)
		}
	}
	if c := ipam.Unconfirmed(p.Status.Conditions); c != nil {
		v.unconfirmed = c.LastTransitionTime.Time
	}
	return v
}
