package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// writeManifests writes the manifests of each platform, with the images by digest. The images of
// the base are never pulled, because no registry has them.
func (r release) writeManifests(digests map[string]string) error {
	platforms, err := r.platforms()
	if err != nil {
		return err
	}
	replace := []string{"imagePullPolicy: Never", "imagePullPolicy: IfNotPresent"}
	for name, digest := range digests {
		replace = append(replace, "image: leasehold/"+name+":devel", "image: "+r.registry+"/"+name+"@"+digest)
	}
	for _, platform := range platforms {
		objects, err := r.render(platform)
		if err != nil {
			return err
		}
		text, err := objects.AsYaml()
		if err != nil {
			return err
		}
		published := strings.NewReplacer(replace...).Replace(string(text))
		if err := r.write(fmt.Sprintf("leasehold-%s-%s.yaml", r.version, platform), []byte(published)); err != nil {
			return err
		}
	}
	return nil
}

// render returns the objects of an overlay.
func (r release) render(platform string) (resmap.ResMap, error) {
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
		filepath.Join(r.repo, "daemonset/overlays", platform))
}
