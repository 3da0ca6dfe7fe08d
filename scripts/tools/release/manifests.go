package main

import (
	"errors"
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

// overlays returns the overlays in the order of their names. The label of the workloads says their
// version, because their images are named by digest.
func (r release) overlays() (all []overlay, err error) {
	dirs, err := filepath.Glob(filepath.Join(r.repo, "daemonset/overlays/*"))
	for _, dir := range dirs {
		objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			return nil, err
		}
		for _, o := range objects.Resources() {
			if o.GetKind() == "DaemonSet" || o.GetKind() == "Deployment" {
				labels := o.GetLabels()
				labels["app.kubernetes.io/version"] = r.version
				err = errors.Join(err, o.SetLabels(labels))
			}
		}
		all = append(all, overlay{filepath.Base(dir), objects})
	}
	return all, err
}

// writeManifests writes the manifests of each platform of a release, with the images by digest.
func (r release) writeManifests(digests map[string]string) error {
	replace := []string{"imagePullPolicy: Never", "imagePullPolicy: IfNotPresent"}
	for name, digest := range digests {
		replace = append(replace, "image: leasehold/"+name+":devel", "image: "+r.registry+"/"+name+"@"+digest)
	}
	return r.writeOverlays("leasehold-"+r.version+"-", replace)
}

// writeDevManifests writes the manifests of each platform with the images of writeArchives. They
// are never pulled, because no registry has them. The tag differs from commit to commit, so that
// applying the manifests of another one replaces the pods.
func (r release) writeDevManifests(tag string) error {
	var replace []string
	for _, o := range product {
		image := "image: leasehold/" + o.Name + ":"
		replace = append(replace, image+"devel", image+tag)
	}
	return r.writeOverlays("", replace)
}

// writeOverlays writes the objects of each overlay to a file with its name after a prefix. replace
// are texts and their replacements.
func (r release) writeOverlays(prefix string, replace []string) error {
	overlays, err := r.overlays()
	if err != nil {
		return err
	}
	for _, o := range overlays {
		text, err := o.objects.AsYaml()
		if err != nil {
			return err
		}
		file := prefix + o.platform + ".yaml"
		if err := r.write(file, []byte(strings.NewReplacer(replace...).Replace(string(text)))); err != nil {
			return err
		}
	}
	return nil
}
