package pin

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// configured is a manager of which only the configuration is used.
type configured struct {
	manager.Manager
	config rest.Config
}

func (c configured) GetConfig() *rest.Config    { return &c.config }
func (c configured) GetScheme() *runtime.Scheme { return clientgoscheme.Scheme }
func (c configured) GetRESTMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	return m
}

func TestNewCaller(t *testing.T) {
	if c, redial, err := newCaller(configured{config: rest.Config{Host: "https://10.0.0.1"}}); err != nil || c == nil ||
		redial == nil {
		t.Errorf("a valid configuration: %v", err)
	}
	for story, config := range map[string]rest.Config{
		"a CA that cannot be read": {Host: "https://10.0.0.1",
			TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}},
		"a host that is none": {Host: "https://%"},
	} {
		if c, _, err := newCaller(configured{config: config}); err == nil || c != nil {
			t.Errorf("%s: %v, %v", story, c, err)
		}
	}
}

// The calls share a connection until redial closes it.
func TestRedial(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c, redial, err := newCaller(configured{config: rest.Config{Host: server.URL, QPS: -1}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int32{1, 1, 2, 2} {
		if i == 2 {
			redial()
		}
		err := c.Get(t.Context(), types.NamespacedName{Namespace: "db", Name: "db-0"}, &corev1.Pod{})
		if got := connections.Load(); !apierrors.IsNotFound(err) || got != want {
			t.Errorf("call %d: %v, %d connections, want %d", i+1, err, got, want)
		}
	}
}
