package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// flannelImage matches the images of flannel's manifest.
var flannelImage = regexp.MustCompile(`image: (ghcr\.io/flannel-io/(flannel|flannel-cni-plugin):\S+)`)

// FlannelManifest returns flannel's own manifest, with the cluster's pod network.
func (c *Cluster) FlannelManifest(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "github.com/flannel-io/flannel")
	cmd.Dir = filepath.Join(c.Repo, "test/e2e/parts/kube-flannel")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := runCmd(cmd)
	if err != nil {
		return "", err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(module.Dir, "Documentation/kube-flannel.yml"))
	if err != nil {
		return "", err
	}
	const network = "10.244.0.0/16"
	if !strings.Contains(string(manifest), network) {
		return "", fmt.Errorf("flannel's manifest does not have the network %s", network)
	}
	return strings.ReplaceAll(string(manifest), network, c.podNetwork().String()), nil
}

// flannelImages returns the images of flannel's manifest as arguments of `release images`. The CNI
// plugin is flannel's own; the init containers need only cp.
func (c *Cluster) flannelImages(ctx context.Context) ([]string, error) {
	manifest, err := c.FlannelManifest(ctx)
	if err != nil {
		return nil, err
	}
	programs := map[string]string{
		"flannel":            "test/e2e/images/flanneld@/opt/bin/flanneld,test/e2e/images/cp@/bin/cp",
		"flannel-cni-plugin": "test/e2e/images/cp@/bin/cp," + c.path("bin/cni/flannel"),
	}
	var images []string
	for _, m := range flannelImage.FindAllStringSubmatch(manifest, -1) {
		if p, found := programs[m[2]]; found {
			images = append(images, m[1]+"="+p)
			delete(programs, m[2])
		}
	}
	if len(programs) > 0 {
		return nil, fmt.Errorf("flannel's manifest has the images %q", images)
	}
	return images, nil
}
