package pin

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// configured is a manager of which only the configuration is used.
type configured struct {
	manager.Manager
	config rest.Config
}

func (c configured) GetConfig() *rest.Config        { return &c.config }
func (c configured) GetScheme() *runtime.Scheme     { return runtime.NewScheme() }
func (c configured) GetRESTMapper() meta.RESTMapper { return meta.NewDefaultRESTMapper(nil) }

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
