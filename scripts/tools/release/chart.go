package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/resmap"

	"github.com/leasehold-cni/leasehold/scripts/tools/image"
)

// writeChart writes the Helm chart: daemonset/chart with the objects of the overlays. The DaemonSet
// of each overlay, and the Deployment are files that a template reads;
// all other objects are templates without parameters.
func (r release) writeChart(digests map[string]string) error {
	files, err := readAll(filepath.Join(r.repo, "daemonset/chart"))
	if err != nil {
		return err
	}
	fill := []string{"v0.0.0-devel", r.version, "0.0.0-devel", strings.TrimPrefix(r.version, "v"), "@REGISTRY@",
		r.registry}
	for name, digest := range digests {
		fill = append(fill, "@"+name+"@", digest)
	}
	for i, f := range files {
		files[i].Data = []byte(strings.NewReplacer(fill...).Replace(string(f.Data)))
	}
	objects, err := r.chartObjects()
	if err != nil {
		return err
	}
	files = append(files, objects...)
	licence, err := os.ReadFile(filepath.Join(r.repo, "LICENSE"))
	if err != nil {
		return err
	}
	files = append(files, image.File{Name: "LICENSE", Data: licence})
	for i := range files {
		files[i].Name, files[i].Mode = "leasehold/"+files[i].Name, 0o644
	}
	data, err := image.TarGz(files)
	if err != nil {
		return err
	}
	return r.write("leasehold-"+strings.TrimPrefix(r.version, "v")+".tgz", data)
}

// chartObjects returns the objects of the overlays as files of the chart. It returns an error if an
// overlay changes another object than the DaemonSet, because the chart would not have that change.
func (r release) chartObjects() ([]image.File, error) {
	platforms, err := r.platforms()
	if err != nil {
		return nil, err
	}
	var files, common []image.File
	for _, platform := range platforms {
		objects, err := r.render(platform)
		if err != nil {
			return nil, err
		}
		daemon, others, err := split(objects)
		if err != nil {
			return nil, err
		}
		files = append(files, image.File{Name: "files/" + platform + ".yaml", Data: daemon})
		same := func(a, b image.File) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }
		if common != nil && !slices.EqualFunc(common, others, same) {
			return nil, fmt.Errorf("overlay %s changes an object beside the DaemonSet, which the chart cannot do",
				platform)
		}
		common = others
	}
	return append(files, common...), nil
}

// split returns the DaemonSet, and all other objects as files of the chart.
func split(objects resmap.ResMap) (daemon []byte, others []image.File, err error) {
	for _, o := range objects.Resources() {
		if o.GetKind() == "Namespace" {
			continue // Helm's, because the release is in it
		}
		data, err := o.AsYAML()
		if err != nil {
			return nil, nil, err
		}
		switch o.GetKind() {
		case "DaemonSet":
			daemon = data
		case "Deployment":
			others = append(others, image.File{Name: "files/manager.yaml", Data: data})
		default:
			if bytes.Contains(data, []byte("{{")) {
				return nil, nil, fmt.Errorf("%s %s contains {{, which Helm would interpret",
					o.GetKind(), o.GetName())
			}
			name := fmt.Sprintf("templates/%s-%s.yaml", strings.ToLower(o.GetKind()), o.GetName())
			if strings.HasSuffix(o.GetName(), ".kruise.io") {
				name = "crds/" + o.GetName() + ".yaml" // Helm installs it only if there is none: it may be Kruise's
			}
			others = append(others, image.File{Name: name, Data: data})
		}
	}
	return daemon, others, nil
}
