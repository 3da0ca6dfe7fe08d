package scenarios

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// A publisher builds releases of the source tree, and has a registry for their images that the
// machines reach.
type publisher struct {
	cluster *cluster.Cluster
	addr    string // of the registry

	built map[string]string // directories by version
}

// newPublisher starts the registry, which serves from memory until the process ends.
func newPublisher(c *cluster.Cluster) (*publisher, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddr().String(), "0"))
	if err != nil {
		return nil, err
	}
	go http.Serve(listener, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	return &publisher{cluster: c, addr: listener.Addr().String(), built: map[string]string{}}, nil
}

// images returns the first part of the images' names.
func (p *publisher) images() string { return p.addr + "/leasehold" }

// release returns the directory of a release whose images are in the registry. It builds the
// release if it was not built yet, of a commit, or of the source tree if that is "".
func (p *publisher) release(ctx context.Context, version, commit string) (dir string, err error) {
	if dir := p.built[version]; dir != "" {
		return dir, nil
	}
	if dir, err = p.cluster.Release(ctx, version, commit, p.images()); err == nil {
		p.built[version] = dir
	}
	return dir, err
}

// publish returns the directory of a release, from whose registry the nodes can pull.
func (t *Test) publish(version string) (dir string) { return t.publishOf(version, "") }

func (t *Test) publishOf(version, commit string) (dir string) {
	dir, err := t.publisher.release(t.Ctx, version, commit)
	t.Must(err)
	t.Step("release %s is built and in the registry at %s", version, t.publisher.addr)
	return dir
}

// installHelm installs a release with its Helm chart, and upgrades it, rolls it back and removes it
// while pods are replaced.
func installHelm(t *Test) {
	program, err := t.Cluster.BuildHelm(t.Ctx)
	t.Must(err)
	helm := func(args ...string) error {
		cmd := exec.CommandContext(t.Ctx, program, append(args, "--namespace="+cluster.System, "--timeout=5m")...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+t.Cluster.Kubeconfig(), "HELM_CACHE_HOME="+t.TempDir(),
			"HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	const chart = "leasehold-[0-9]*.[0-9].tgz"
	former, next := t.publish("v0.1.0"), t.publish("v0.2.0")
	s := t.stockCluster()
	began := time.Now()
	t.Must(helm("install", "leasehold", oneIn(t, former, chart), "--create-namespace", "--set=platform=replace",
		"--set=image.registry="+t.publisher.images()))
	s.removed = false
	s.becomesActive(began)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	t.Kept(s.pods, s.set.Recreate())
	t.clusterDoctor().healthy()
	t.Step("recreated pods keep their addresses, and doctor finds nothing")
	s.upgradeAndBack(
		func() error {
			return helm("upgrade", "leasehold", oneIn(t, next, chart), "--reset-then-reuse-values", "--wait")
		},
		func() error { return helm("rollback", "leasehold", "1", "--wait") })
	t.Step("one address is held; leasehold is removed")
	s.set.Scale(s.set.size - 1)
	t.Must(helm("uninstall", "leasehold", "--wait"))
	s.removed = true
	s.assertAsBefore()
}

// upgradeAndBack upgrades leasehold and rolls it back while pods are replaced. Both containerd
// versions pull the images by digest.
func (s *stockCluster) upgradeAndBack(upgrade, rollBack func() error) {
	first := s.assertImages()
	s.whilePodsAreReplaced("the upgrade", upgrade)
	second := s.assertImages()
	s.whilePodsAreReplaced("the rollback", rollBack)
	if now := s.assertImages(); now != first || now == second {
		s.Errorf("the images were %s, after the upgrade %s, and are %s after the rollback", first, second, now)
	}
}

// oneIn returns the path of the only file in the directory of a release that matches a pattern.
func oneIn(t *Test, dir, pattern string) string {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	t.Must(err)
	if len(found) != 1 {
		t.Fatalf("%s has %d files %s, want one", dir, len(found), pattern)
	}
	return found[0]
}

// whilePodsAreReplaced replaces the retained pods again and again until a command has ended and all
// of leasehold's pods are those of the new version, and checks that they keep their addresses.
func (s *stockCluster) whilePodsAreReplaced(what string, command func() error) {
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		done <- cmp.Or(command(), s.Cluster.WaitDeployed(s.Ctx))
	}()
	for rounds := 1; ; rounds++ {
		s.Kept(s.pods, s.set.Recreate())
		select {
		case err := <-done:
			s.Must(err)
			s.Kept(s.pods, s.set.Recreate())
			s.becomesActive(time.Now())
			s.Step("%s took %.1f s; pods were replaced %d times meanwhile", what, time.Since(began).Seconds(), rounds)
			return
		default:
		}
	}
}

// assertImages checks that leasehold's pods run images that were pulled by digest, and returns the
// names of the images.
func (s *stockCluster) assertImages() string {
	images := map[string]bool{}
	s.Eventually("leasehold's pods run images of the registry", func() error {
		clear(images)
		pods := append(s.system(cluster.Agent), s.system(cluster.Manager)...)
		if len(pods) == 0 {
			return errors.New("there are no pods")
		}
		for _, p := range pods {
			for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
				repository, digest, byDigest := strings.Cut(c.ImageID, "@sha256:")
				if !strings.HasPrefix(repository, s.publisher.addr) || !byDigest {
					return fmt.Errorf("%s of %s on %s runs %s", c.Name, p.Name, p.Spec.NodeName, c.ImageID)
				}
				images[filepath.Base(repository)+"@"+digest[:8]] = true
			}
		}
		return nil
	})
	list := strings.Join(slices.Sorted(maps.Keys(images)), " ")
	s.Step("the images are %s", list)
	return list
}
