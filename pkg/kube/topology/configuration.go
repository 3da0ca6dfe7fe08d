package topology

import (
	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// ConfigurationName is the name of both webhook configurations, which are in the manifests with no webhook in them: RBAC can
// confine whom the manager writes to, but not what it makes. Configurations are called in the order of their names: this
// one before the pin's, so that the pin sees what is required here as it sees the user's own selectors (DESIGN 7,
// precedence).
const ConfigurationName = "leasehold-apps-kruise-io"

// Where the webhooks are served.
const (
	podsPath      = "/persistentpodstate/pods"
	normalizePath = "/persistentpodstate/normalize"
	validatePath  = "/persistentpodstate/validate"
)

// service is how the API server reaches the webhooks.
type service struct {
	namespace string
	ca        []byte
}

func (s service) at(path string) admission.WebhookClientConfig {
	return admission.WebhookClientConfig{CABundle: s.ca,
		Service: &admission.ServiceReference{Namespace: s.namespace, Name: meta.ManagerName, Path: &path, Port: new(int32(443))}}
}

// objects is the rule for PersistentPodStates themselves; v1alpha1 comes as v1beta1.
func objects() []admission.RuleWithOperations {
	return []admission.RuleWithOperations{{
		Operations: []admission.OperationType{admission.Create, admission.Update},
		Rule: admission.Rule{APIGroups: []string{pps.GroupVersion.Group}, APIVersions: []string{pps.GroupVersion.Version},
			Resources: []string{"persistentpodstates"}, Scope: new(admission.NamespacedScope)},
	}}
}

// mutating normalises PersistentPodStates, and binds the pods of certain kinds while there is one.
func (s service) mutating(kinds Kinds, pods bool) []admission.MutatingWebhook {
	hooks := []admission.MutatingWebhook{{
		Name:                    "normalize.persistentpodstates.leasehold.dev",
		ClientConfig:            s.at(normalizePath),
		Rules:                   objects(),
		FailurePolicy:           new(admission.Fail),
		MatchPolicy:             new(admission.Equivalent),
		SideEffects:             new(admission.SideEffectClassNone),
		TimeoutSeconds:          new(int32(5)),
		ReinvocationPolicy:      new(admission.NeverReinvocationPolicy),
		NamespaceSelector:       &metav1.LabelSelector{},
		ObjectSelector:          &metav1.LabelSelector{},
		AdmissionReviewVersions: []string{"v1"},
	}}
	if !pods {
		return hooks
	}
	return append(hooks, admission.MutatingWebhook{
		Name:         "pods.persistentpodstates.leasehold.dev",
		ClientConfig: s.at(podsPath),
		Rules: []admission.RuleWithOperations{{
			Operations: []admission.OperationType{admission.Create},
			Rule: admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"},
				Scope: new(admission.NamespacedScope)},
		}},
		FailurePolicy:      new(admission.Ignore), // a pod that cannot be bound starts all the same
		MatchPolicy:        new(admission.Equivalent),
		SideEffects:        new(admission.SideEffectClassNone),
		TimeoutSeconds:     new(int32(2)),
		ReinvocationPolicy: new(admission.IfNeededReinvocationPolicy), // others may add selectors afterwards
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{s.namespace, metav1.NamespaceSystem}}}},
		ObjectSelector: &metav1.LabelSelector{},
		MatchConditions: []admission.MatchCondition{
			{Name: "workload", Expression: kinds.celOfPods()},
			{Name: "not-placed", Expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
		},
		AdmissionReviewVersions: []string{"v1"},
	})
}

// validating refuses what cannot work.
func (s service) validating() []admission.ValidatingWebhook {
	return []admission.ValidatingWebhook{{
		Name:                    "validate.persistentpodstates.leasehold.dev",
		ClientConfig:            s.at(validatePath),
		Rules:                   objects(),
		FailurePolicy:           new(admission.Fail),
		MatchPolicy:             new(admission.Equivalent),
		SideEffects:             new(admission.SideEffectClassNone),
		TimeoutSeconds:          new(int32(5)),
		NamespaceSelector:       &metav1.LabelSelector{},
		ObjectSelector:          &metav1.LabelSelector{},
		AdmissionReviewVersions: []string{"v1"},
	}}
}
