package permissions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// checkRoles proves that RBAC is what refuses the attempts that the table says are forbidden: with
// the role cluster-admin each of them is allowed, or refused by a policy. Each list of
// resourceNames in the roles of agent and manager is proven in the same way: without it an attempt
// that is forbidden is not.
func (c *checker) checkRoles(ctx context.Context) error {
	problems := []error{c.checkResourceNames(ctx)}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "permissions-all"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}
	for _, a := range accounts {
		binding.Subjects = append(binding.Subjects,
			rbacv1.Subject{Kind: "ServiceAccount", Namespace: a.namespace, Name: a.name})
	}
	bindings := c.client.RbacV1().ClusterRoleBindings()
	if _, err := bindings.Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { _ = bindings.Delete(context.WithoutCancel(ctx), binding.Name, metav1.DeleteOptions{}) }()
	for _, a := range attempts {
		if a.refused != forbidden {
			continue
		}
		result := ""
		err := within(ctx, func() error {
			err := c.try(ctx, a, []string{metav1.DryRunAll})
			switch {
			case err == nil:
				result = "it is allowed"
			case strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'leasehold-"):
				result = "a policy refuses it"
				err = nil
			}
			return err
		})
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: with the role cluster-admin: %w", a, err))
			continue
		}
		c.logf("with the role cluster-admin %s: %s", result, a)
	}
	return errors.Join(problems...)
}

// checkResourceNames removes each list of resourceNames from the roles of agent and manager. It is
// one sequence of steps for each list.
func (c *checker) checkResourceNames(ctx context.Context) error {
	type role struct {
		name  string
		rules []rbacv1.PolicyRule
		patch func(data []byte) error
	}
	var roles []role
	cluster := c.client.RbacV1().ClusterRoles()
	list, err := cluster.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, r := range list.Items {
		roles = append(roles, role{r.Name, r.Rules, func(data []byte) error {
			_, err := cluster.Patch(ctx, r.Name, types.JSONPatchType, data, metav1.PatchOptions{})
			return err
		}})
	}
	own := c.client.RbacV1().Roles("leasehold-system")
	inNamespace, err := own.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, r := range inNamespace.Items {
		roles = append(roles, role{r.Name, r.Rules, func(data []byte) error {
			_, err := own.Patch(ctx, r.Name, types.JSONPatchType, data, metav1.PatchOptions{})
			return err
		}})
	}
	var problems []error
	for _, r := range roles {
		if !strings.HasPrefix(r.name, "leasehold-") {
			continue
		}
		for i, rule := range r.rules {
			if len(rule.ResourceNames) == 0 {
				continue
			}
			path := fmt.Sprintf("/rules/%d/resourceNames", i)
			names, err := json.Marshal(rule.ResourceNames)
			if err != nil {
				return err
			}
			if err := r.patch([]byte(`[{"op": "remove", "path": "` + path + `"}]`)); err != nil {
				return err
			}
			what := fmt.Sprintf("the resourceNames %s in role %s", names, r.name)
			if err := c.provenByName(ctx, rule, what); err != nil {
				problems = append(problems, fmt.Errorf("without %s: %w", what, err))
			}
			restore := fmt.Sprintf(`[{"op": "add", "path": "%s", "value": %s}]`, path, names)
			if err := r.patch([]byte(restore)); err != nil {
				return err
			}
			// Otherwise the next rule could seem to be proven by the removal of this one.
			for _, a := range forbiddenBy(rule) {
				if err := c.meets(ctx, a); err != nil {
					return fmt.Errorf("with %s again: %s: %w", what, a, err)
				}
			}
		}
	}
	return errors.Join(problems...)
}

// forbiddenBy returns the attempts of the table that are forbidden because their names are not in
// the rule.
func forbiddenBy(rule rbacv1.PolicyRule) (all []attempt) {
	for _, a := range attempts {
		if a.refused == forbidden && slices.Contains(rule.Resources, a.kind) &&
			slices.Contains(rule.APIGroups, resources[a.kind].Group) && slices.Contains(rule.Verbs, a.verb) {
			all = append(all, a)
		}
	}
	return all
}

// provenByName returns nil if RBAC does not refuse an attempt any more, now that the rule has no
// resourceNames.
func (c *checker) provenByName(ctx context.Context, rule rbacv1.PolicyRule, what string) error {
	all := forbiddenBy(rule)
	if len(all) == 0 {
		return errors.New("no attempt of the table is forbidden by it")
	}
	return within(ctx, func() (err error) {
		for _, a := range all {
			err = c.try(ctx, a, []string{metav1.DryRunAll})
			if err == nil || !strings.Contains(err.Error(), forbidden) {
				c.logf("without %s it is not forbidden: %s", what, a)
				return nil
			}
		}
		return fmt.Errorf("still refused: %s: %w", all[len(all)-1], err)
	})
}

// checkNamespace proves that the policy of reservations has to name the namespace of agent and
// manager: if it did not, an account with the agent's name in another one could create
// reservations.
func (c *checker) checkNamespace(ctx context.Context) error {
	policies := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	p, err := policies.Get(ctx, "leasehold-reservations", metav1.GetOptions{})
	if err != nil {
		return err
	}
	set := func(conditions []admissionv1.MatchCondition) error {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"matchConditions": conditions}})
		if err == nil {
			_, err = policies.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	if err := set([]admissionv1.MatchCondition{{Name: "in-any-namespace", Expression: "!request.userInfo.username" +
		".matches('^system:serviceaccount:[^:]+:leasehold-(agent|manager)$')"}}); err != nil {
		return err
	}
	for _, a := range attempts {
		if a.as != "impostor" {
			continue
		}
		if err := within(ctx, func() error { return c.try(ctx, a, []string{metav1.DryRunAll}) }); err != nil {
			return fmt.Errorf("%s without the namespace: %s: %w", p.Name, a, err)
		}
		c.logf("without the namespace in policy %s it is allowed: %s", p.Name, a)
	}
	return set(p.Spec.MatchConditions)
}
