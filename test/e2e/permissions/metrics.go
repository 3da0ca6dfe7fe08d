package permissions

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// CheckMetrics checks with the tokens of agent and manager that the API server lets them ask who
// scrapes, and that an account may scrape if it has the ClusterRole leasehold-metrics. The
// component metrics-secure must be applied. It is one sequence of steps.
func CheckMetrics(ctx context.Context, config *rest.Config) error {
	c := &checker{config: config}
	var err error
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	scraper := account{"default", "prometheus", ""}
	accounts, bindings := c.client.CoreV1().ServiceAccounts(scraper.namespace), c.client.RbacV1().ClusterRoleBindings()
	meta := metav1.ObjectMeta{Name: scraper.name}
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_ = accounts.Delete(ctx, scraper.name, metav1.DeleteOptions{})
		_ = bindings.Delete(ctx, scraper.name, metav1.DeleteOptions{})
	}()
	token, err := c.token(ctx, scraper)
	if err != nil {
		return err
	}
	filters := map[string]http.Handler{}
	for _, of := range []string{"leasehold-agent", "leasehold-manager"} {
		own := rest.AnonymousClientConfig(config)
		if own.BearerToken, err = c.token(ctx, account{"leasehold-system", of, ""}); err != nil {
			return err
		}
		clients, err := kube.NewClients(own)
		if err != nil {
			return err
		}
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		// A new filter for each request has no former result.
		filters[of] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kube.NewMetricsFilter(clients, slog.New(slog.DiscardHandler)).Handler(ok).ServeHTTP(w, r)
		})
	}
	expect := func(token string, want int) error {
		for of, h := range filters {
			err := within(ctx, func() error {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
				r.Header.Set("Authorization", "Bearer "+token)
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != want {
					return fmt.Errorf("a scrape of %s: status %d, want %d", of, w.Code, want)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := expect(token, http.StatusForbidden); err != nil {
		return fmt.Errorf("without the role: %w", err)
	}
	if err := expect(token+"x", http.StatusUnauthorized); err != nil {
		return fmt.Errorf("with an invalid token: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: scraper.namespace, Name: scraper.name}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "leasehold-metrics"}}
	if _, err := bindings.Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := expect(token, http.StatusOK); err != nil {
		return fmt.Errorf("with the role: %w", err)
	}
	return nil
}
