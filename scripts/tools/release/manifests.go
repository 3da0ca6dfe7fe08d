package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// An overlay has the objects of a platform.
type overlay struct {
	platform string
	objects  resmap.ResMap
}

// overlays returns the overlays in the order of their names.
func (r release) overlays() (all []overlay, err error) {
	dirs, err := filepath.Glob(filepath.Join(r.repo, "daemonset/overlays/*"))
	for _, dir := range dirs {
		objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			return nil, err
		}
		all = append(all, overlay{filepath.Base(dir), objects})
	}
	return all, err
}

// writeManifests writes the manifests of each platform, with the images by digest. The images of
// the base are never pulled, because no registry has them.
func (r release) writeManifests(digests map[string]string) error {
	overlays, err := r.overlays()
	if err != nil {
		return err
	}
	replace := []string{"imagePullPolicy: Never", "imagePullPolicy: IfNotPresent"}
	for name, digest := range digests {
		replace = append(replace, "image: leasehold/"+name+":devel", "image: "+r.registry+"/"+name+"@"+digest)
	}
	for _, o := range overlays {
		text, err := o.objects.AsYaml()
		if err != nil {
			return err
		}
		published := strings.NewReplacer(replace...).Replace(string(text))
		if err := r.write(fmt.Sprintf("leasehold-%s-%s.yaml", r.version, o.platform), []byte(published)); err != nil {
			return err
		}
	}
	return nil
}
