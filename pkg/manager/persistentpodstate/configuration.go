package persistentpodstate

import (
	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// configurationName is the name of both webhook configurations, the mutating and the validating
// one. The manifests contain them without webhooks, because RBAC can restrict by name which
// configurations the manager updates, but not which it creates.
//
// The API server calls webhook configurations in the order of their names. This name sorts before
// the name of the configuration of the pin, so that the pin treats the labels that Inject requires
// like selectors that the user wrote.
const configurationName = "leasehold-apps-kruise-io"

// Paths of the webhooks.
const (
	podsPath      = "/persistentpodstate/pods"
	normalizePath = "/persistentpodstate/normalize"
	validatePath  = "/persistentpodstate/validate"
)

// service is where the API server reaches the webhooks: the Service in namespace, whose certificate
// is signed by the CA bundle ca.
type service struct {
	namespace string
	ca        []byte
}

// at returns the client configuration of the webhook with the given URL path.
func (s service) at(path string) admission.WebhookClientConfig {
	return admission.WebhookClientConfig{CABundle: s.ca,
		Service: &admission.ServiceReference{Namespace: s.namespace, Name: wellknown.ManagerName, Path: &path,
			Port: new(int32(443))}}
}

// objects returns the rules that match writes of PersistentPodStates. With MatchPolicy Equivalent,
// the API server converts objects of v1alpha1 to v1beta1 before it calls a webhook.
func objects() []admission.RuleWithOperations {
	return []admission.RuleWithOperations{{
		Operations: []admission.OperationType{admission.Create, admission.Update},
		Rule: admission.Rule{APIGroups: []string{pps.GroupVersion.Group},
			APIVersions: []string{pps.GroupVersion.Version},
			Resources:   []string{"persistentpodstates"}, Scope: new(admission.NamespacedScope)},
	}}
}

// mutating returns the webhook that normalizes PersistentPodStates. If pods is true, it also
// returns the webhook that modifies new pods, restricted to pods of the given kinds of workload.
func (s service) mutating(kinds kindList, pods bool) []admission.MutatingWebhook {
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
		FailurePolicy:      new(admission.Ignore), // pods must start without the webhook too
		MatchPolicy:        new(admission.Equivalent),
		SideEffects:        new(admission.SideEffectClassNone),
		TimeoutSeconds:     new(int32(2)),
		ReinvocationPolicy: new(admission.IfNeededReinvocationPolicy), // webhooks called later may add selectors
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{s.namespace,
				metav1.NamespaceSystem}}}},
		ObjectSelector: &metav1.LabelSelector{},
		MatchConditions: []admission.MatchCondition{
			{Name: "workload", Expression: kinds.celOfPods()},
			{Name: "not-placed", Expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
		},
		AdmissionReviewVersions: []string{"v1"},
	})
}

// validating returns the webhook that validates PersistentPodStates.
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
