package cluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// flannelImage matches the images of flannel's manifest.
var flannelImage = regexp.MustCompile(`image: (ghcr\.io/flannel-io/(flannel|flannel-cni-plugin):\S+)`)

// FlannelManifest returns flannel's own manifest, with the cluster's pod network.
func (c *Cluster) FlannelManifest() (string, error) {
	manifest, err := os.ReadFile(c.path("bin/kube-flannel.yml"))
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
	if err := c.buildParts(ctx, "kube-flannel"); err != nil {
		return nil, err
	}
	manifest, err := c.FlannelManifest()
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
