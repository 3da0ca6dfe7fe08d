package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewPlugin is a plugin manifest of krew, without the fields that a release does not read.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// writeKrew writes the manifest of the kubectl plugin, with the version and the sums of the
// archives, which must have been written before.
func (r release) writeKrew() error {
	data, err := os.ReadFile(filepath.Join(r.repo, "daemonset/krew.yaml"))
	if err != nil {
		return err
	}
	var p krewPlugin
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(string(data), "@VERSION@", r.version)), &p); err != nil {
		return fmt.Errorf("daemonset/krew.yaml: %w", err)
	}
	p.Spec.Platforms = slices.DeleteFunc(p.Spec.Platforms, func(k krewPlatform) bool {
		return !slices.Contains(r.archs, k.Selector.MatchLabels["arch"])
	})
	for i := range p.Spec.Platforms {
		k := &p.Spec.Platforms[i]
		archive, err := os.ReadFile(filepath.Join(r.dir, path.Base(k.URI)))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(archive)
		k.SHA256 = hex.EncodeToString(sum[:])
	}
	if data, err = yaml.Marshal(p); err != nil {
		return err
	}
	return r.write(fmt.Sprintf("leasehold-%s-krew.yaml", r.version), data)
}
