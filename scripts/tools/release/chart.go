package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	files = append(files, File{Name: "LICENSE", Data: licence})
	for i := range files {
		files[i].Name, files[i].Mode = "leasehold/"+files[i].Name, 0o644
	}
	return r.writeTarGz("leasehold-"+strings.TrimPrefix(r.version, "v")+".tgz", files)
}

// chartObjects returns the objects of the overlays as files of the chart. The overlays differ in
// the DaemonSet only; a test compares the others.
func (r release) chartObjects() (files []File, err error) {
	overlays, err := r.overlays()
	if err != nil {
		return nil, err
	}
	for i, overlay := range overlays {
		for _, o := range overlay.objects.Resources() {
			data, err := o.AsYAML()
			if err != nil {
				return nil, err
			}
			name := fmt.Sprintf("templates/%s-%s.yaml", strings.ToLower(o.GetKind()), o.GetName())
			switch {
			case o.GetKind() == "DaemonSet":
				name = "files/" + overlay.platform + ".yaml"
			case i > 0, o.GetKind() == "Namespace": // that one is Helm's, because the release is in it
				continue
			case o.GetKind() == "Deployment":
				name = "files/manager.yaml"
			case strings.HasSuffix(o.GetName(), ".kruise.io"):
				name = "crds/" + o.GetName() + ".yaml" // Helm installs it only if there is none: it may be Kruise's
			}
			files = append(files, File{Name: name, Data: data})
		}
	}
	return files, nil
}
