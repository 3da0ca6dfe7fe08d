package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
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

// published are the changes of an overlay for a release. The images of the base are never pulled,
// because no registry has them.
const published = `resources: [%s]
patches:
- target: {kind: DaemonSet|Deployment}
  patch: '- {op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: IfNotPresent}'
- target: {kind: DaemonSet}
  patch: '- {op: replace, path: /spec/template/spec/initContainers/0/imagePullPolicy, value: IfNotPresent}'
images:
`

// render returns the objects of an overlay, with the images of the base, or with those of the
// release if there are digests.
func (r release) render(platform string, digests map[string]string) (resmap.ResMap, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(r.repo, "daemonset/overlays", platform))
	if err != nil {
		return nil, err
	}
	if digests != nil {
		work, err := os.MkdirTemp("", "overlay")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(work)
		if work, err = filepath.EvalSymlinks(work); err != nil {
			return nil, err
		}
		overlay, err := filepath.Rel(work, dir)
		if err != nil {
			return nil, err
		}
		text := fmt.Sprintf(published, overlay)
		for _, name := range slices.Sorted(maps.Keys(digests)) {
			text += fmt.Sprintf("- {name: leasehold/%[1]s, newName: %[2]s/%[1]s, digest: %[3]q}\n", name, r.registry,
				digests[name])
		}
		if err := os.WriteFile(filepath.Join(work, "kustomization.yaml"), []byte(text), 0o644); err != nil {
			return nil, err
		}
		dir = work
	}
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
}
