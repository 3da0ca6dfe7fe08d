package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// platforms returns the names of the overlays.
func (r release) platforms() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(r.repo, "daemonset/overlays"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// writeManifests writes the manifests of each platform, with the images by digest.
func (r release) writeManifests(digests map[string]string) error {
	platforms, err := r.platforms()
	if err != nil {
		return err
	}
	for _, platform := range platforms {
		objects, err := r.render(platform, digests)
		if err != nil {
			return fmt.Errorf("overlay %s: %w", platform, err)
		}
		data, err := objects.AsYaml()
		if err != nil {
			return err
		}
		if err := r.write(fmt.Sprintf("leasehold-%s-%s.yaml", r.version, platform), data); err != nil {
			return err
		}
	}
	return nil
}

// pull lets a workload pull its images. Those of the base are never pulled, because no registry has
// them.
const pull = `apiVersion: apps/v1
kind: %s
metadata:
  name: leasehold-%s
  namespace: leasehold-system
spec:
  template:
    spec:
      %s:
      - name: %s
        imagePullPolicy: IfNotPresent
`

// render returns the objects of an overlay. Without digests the images are those of the base.
func (r release) render(platform string, digests map[string]string) (resmap.ResMap, error) {
	work, err := os.MkdirTemp("", "overlay")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if work, err = filepath.EvalSymlinks(work); err != nil {
		return nil, err
	}
	overlay, err := filepath.EvalSymlinks(filepath.Join(r.repo, "daemonset/overlays", platform))
	if err != nil {
		return nil, err
	}
	if overlay, err = filepath.Rel(work, overlay); err != nil {
		return nil, err
	}
	k := types.Kustomization{Resources: []string{overlay}}
	if digests != nil {
		for _, p := range [][4]any{
			{"DaemonSet", "agent", "initContainers", "install"},
			{"DaemonSet", "agent", "containers", "agent"},
			{"Deployment", "manager", "containers", "manager"},
		} {
			k.Patches = append(k.Patches, types.Patch{Patch: fmt.Sprintf(pull, p[:]...)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		k.Images = append(k.Images, types.Image{Name: "leasehold/" + name, NewName: r.registry + "/" + name,
			Digest: digests[name]})
	}
	data, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(work, "kustomization.yaml"), data, 0o644); err != nil {
		return nil, err
	}
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), work)
}
