package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// built are the chart and the manifests of one build, in which both have the same digests.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "chart")
	if err != nil {
		panic(err)
	}
	built = dir
	cmd := exec.Command("go", "-C", "../../scripts/tools", "run", "./release", "chart", "-repo", "../..", "-o", dir,
		"-version", "v0.0.0", "-registry", "registry.example.org/leasehold")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func archive() string { return filepath.Join(built, "leasehold-0.0.0.tgz") }

func platforms(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("../../daemonset/overlays/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("overlays: %v, %v", dirs, err)
	}
	var names []string
	for _, d := range dirs {
		names = append(names, filepath.Base(d))
	}
	return names
}

// render returns what `helm install` would apply, and its hooks, for an API server that is not
// there.
func render(namespace, kubeVersion string, values map[string]any) (*release.Release, error) {
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace, install.IncludeCRDs = "leasehold", namespace, true
	version, err := common.ParseKubeVersion(kubeVersion)
	if err != nil {
		return nil, err
	}
	install.KubeVersion = version
	chart, err := loader.Load(archive())
	if err != nil {
		return nil, err
	}
	out, err := install.Run(chart, values)
	if err != nil {
		return nil, err
	}
	return out.(*release.Release), nil
}

const (
	namespace = "leasehold-system"
	oldest    = "v1.30.0"
)

// rendered is render in the namespace of leasehold, for the oldest version. It returns the objects
// by kind and name.
func rendered(t *testing.T, values map[string]any) (all map[string]any, hooks []*release.Hook) {
	t.Helper()
	r, err := render(namespace, oldest, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, []byte(r.Manifest)), r.Hooks
}

// read returns the objects of a file with manifests.
func read(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, text)
}

// has checks that a text has all words.
func has(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s has no %s:\n%s", what, w, text)
		}
	}
}

// objects returns the objects of a manifest by kind and name.
func objects(t *testing.T, manifest []byte) map[string]any {
	t.Helper()
	all := map[string]any{}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o) == 0 {
			continue
		}
		metadata := o["metadata"].(map[string]any)
		all[fmt.Sprint(o["kind"], " ", metadata["name"])] = o
	}
}

// TestChartIsKustomize compares the objects of the chart with those of the manifests. The chart has
// no Namespace, because that is Helm's. Helm does not remove the CRDs.
func TestChartIsKustomize(t *testing.T) {
	for _, platform := range platforms(t) {
		t.Run(platform, func(t *testing.T) {
			got, _ := rendered(t, map[string]any{"platform": platform})
			want := read(t, filepath.Join(built, "leasehold-v0.0.0-"+platform+".yaml"))
			delete(want, "Namespace "+namespace)
			for name, o := range got {
				if strings.HasPrefix(name, "CustomResourceDefinition ") {
					has(t, name, fmt.Sprint(o), "helm.sh/resource-policy:keep")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kustomize and the chart (-kustomize +chart):\n%s", diff)
			}
		})
	}
}

// TestComponents compares what the values networkPolicy.enabled and podMonitors.enabled add with
// what the components of kustomize add.
func TestComponents(t *testing.T) {
	before, _ := rendered(t, nil)
	for value, component := range map[string]string{
		"networkPolicy": "network-policy/networkpolicy.yaml", "podMonitors": "pod-monitors/podmonitors.yaml",
	} {
		got, _ := rendered(t, map[string]any{value: map[string]any{"enabled": true}})
		maps.DeleteFunc(got, func(name string, _ any) bool { return before[name] != nil })
		if diff := cmp.Diff(read(t, "../../daemonset/components/"+component), got); diff != "" {
			t.Errorf("%s.enabled and the component (-component +chart):\n%s", value, diff)
		}
	}
	all, _ := rendered(t, map[string]any{
		"networkPolicy": map[string]any{"enabled": true, "apiServers": []any{"192.0.2.1/32"},
			"apiServerPorts": []any{8443}, "metricsNamespace": "prometheus"}})
	has(t, "the policy", fmt.Sprint(all["NetworkPolicy leasehold-manager"]),
		"cidr:192.0.2.1/32", "port:8443", "metadata.name:prometheus")
}

func TestLint(t *testing.T) {
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, namespace
	result := lint.Run([]string{archive()}, nil)
	for _, err := range result.Errors {
		t.Error(err)
	}
	if result.TotalChartsLinted != 1 {
		t.Errorf("%d charts were checked", result.TotalChartsLinted)
	}
}

// TestValues sets every value, and looks for it where it belongs.
func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	workload := func(more map[string]any) map[string]any {
		m := map[string]any{
			"args": []any{"--log-level=debug"}, "nodeSelector": map[string]any{"pool": "a"},
			"resources":   map[string]any{"limits": map[string]any{"memory": "1Gi"}},
			"tolerations": []any{map[string]any{"key": "b", "operator": "Exists"}},
		}
		maps.Copy(m, more)
		return m
	}
	all, hooks := rendered(t, map[string]any{
		"platform": "crio",
		"image": map[string]any{"registry": "r.example.org/x", "pullPolicy": "Always",
			"pullSecrets": []any{map[string]any{"name": "s"}}, "digests": map[string]any{"agent": digest}},
		"agent":   workload(map[string]any{"maxUnavailable": "7%"}),
		"manager": workload(map[string]any{"replicas": 3}), "uninstall": map[string]any{"timeout": "9m"},
	})
	for name, want := range map[string][]string{
		"DaemonSet leasehold-agent": {"r.example.org/x/agent@" + digest,
			"maxUnavailable:7%", "--cni-bin-dir=/usr/libexec/cni --log-level=debug]", "kubernetes.io/os:linux pool:a",
			"memory:1Gi", "key:b", "imagePullSecrets:[map[name:s]]", "imagePullPolicy:Always"},
		"Deployment leasehold-manager": {"r.example.org/x/manager@", "args:[--log-level=debug]", "replicas:3",
			"kubernetes.io/os:linux pool:a", "memory:1Gi", "key:b", "imagePullSecrets:[map[name:s]]"},
	} {
		has(t, name, fmt.Sprint(all[name]), want...)
	}
	job := hooks[slices.IndexFunc(hooks, func(h *release.Hook) bool { return h.Kind == "Job" })]
	has(t, "the hook", job.Manifest, "r.example.org/x/leasectl@", "--timeout=9m", "imagePullPolicy: Always", "name: s")
}

// TestHooks checks that the nodes are done before Helm removes the objects, with an account that
// exists by then.
func TestHooks(t *testing.T) {
	_, hooks := rendered(t, nil)
	slices.SortStableFunc(hooks, func(a, b *release.Hook) int { return a.Weight - b.Weight })
	var kinds []string
	for _, h := range hooks {
		kinds = append(kinds, h.Kind)
		if !slices.Equal(h.Events, []release.HookEvent{release.HookPreDelete}) {
			t.Errorf("%s %s is called at %v", h.Kind, h.Name, h.Events)
		}
	}
	slices.Sort(kinds[:2])
	if want := []string{"ClusterRole", "ServiceAccount", "ClusterRoleBinding", "Job"}; !slices.Equal(kinds, want) {
		t.Errorf("hooks %q, want %q", kinds, want)
	}
}

func TestRejected(t *testing.T) {
	for _, c := range []struct {
		namespace, version string
		values             map[string]any
		want               string
	}{
		{"default", oldest, nil, "use --namespace leasehold-system"},
		{namespace, "v1.29.9", nil, "incompatible with Kubernetes"},
		{namespace, oldest, map[string]any{"platform": "gke"}, "platform"},
		{namespace, oldest, map[string]any{"plattform": "k3s"}, "plattform"},
		{namespace, oldest, map[string]any{"image": map[string]any{"digests": map[string]any{"agent": "latest"}}},
			"agent"},
		{namespace, oldest, map[string]any{"manager": map[string]any{"replicas": 0}}, "replicas"},
		{namespace, oldest, map[string]any{"agent": map[string]any{"args": []any{"debug"}}}, "args"},
		{namespace, oldest, map[string]any{"agent": map[string]any{"maxUnavailable": 0}}, "maxUnavailable"},
	} {
		if _, err := render(c.namespace, c.version, c.values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v in %s on %s: %v, want %q", c.values, c.namespace, c.version, err, c.want)
		}
	}
}
