package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// findCRIO returns the path of crio, which is a path itself, or in a directory, or in PATH. CRI-O's
// pinns and conmon must be on the machine, too.
func findCRIO(path string) (string, error) {
	if path == "" {
		path = "crio"
	} else if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "crio")
	}
	crio, err := exec.LookPath(path)
	if err != nil {
		return "", fmt.Errorf("RUNTIME=crio: %w; CRIO is the path of CRI-O's directory or program", err)
	}
	if crio, err = filepath.Abs(crio); err != nil {
		return "", err
	}
	for _, program := range []string{pinns(crio), "conmon"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("RUNTIME=crio: %w; CRI-O needs it", err)
		}
	}
	return crio, nil
}

// pinns returns the path of pinns, which is beside crio, or its name.
func pinns(crio string) string {
	if beside := filepath.Join(filepath.Dir(crio), "pinns"); exists(beside) {
		return beside
	}
	return "pinns"
}

const (
	crioConfig = "/etc/crio/crio.conf"
	crioRunc   = "/etc/crio/runc"
)

// crio writes the configuration of CRI-O, and returns its service. As by default pods have no pause
// process, except on the last of three or more nodes.
func (n *Node) crio(r Runtime) (machine.Service, error) {
	pinns, err := exec.LookPath(pinns(n.cluster.CRIO))
	if err != nil {
		return machine.Service{}, err
	}
	err = n.configure(crioConfig, "crio.conf", map[string]any{"Runc": crioRunc, "Pinns": pinns, "Pause": pauseImage,
		"ConfDir": r.ConfDir, "BinDir": r.BinDir, "Drop": n.cluster.Nodes < 3 || n.Index < n.cluster.Nodes-1})
	if err != nil {
		return machine.Service{}, err
	}
	script, err := fill("runc.sh", n.runc())
	return machine.Service{Argv: n.CRIO()}, cmp.Or(err,
		n.configure("/etc/containers/registries.conf", "registries.conf", map[string]any{"Mirror": n.mirror(),
			"Registries": []string{"docker.io", "ghcr.io", "registry.k8s.io"}}),
		n.write("/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`),
		writeFileMode(n.Root()+crioRunc, []byte(script), 0o755))
}

// CRIO returns a command of crio with the node's configuration.
func (n *Node) CRIO(args ...string) []string {
	return append([]string{n.cluster.CRIO, "--config=" + crioConfig, "--config-dir=/etc/crio/crio.conf.d"}, args...)
}

// mirror is the address of the registry from which the node pulls the images of archives.
func (n *Node) mirror() string { return fmt.Sprintf("%s:%d", n.cluster.HostAddr(), 5000+n.Index) }

// pullImages has the node pull the images of archives from a registry that serves only meanwhile.
func (n *Node) pullImages(ctx context.Context, archives []string) error {
	listener, err := net.Listen("tcp", n.mirror())
	if err != nil {
		return err
	}
	defer listener.Close()
	go http.Serve(listener, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	for _, archive := range archives {
		manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
		if err != nil {
			return err
		}
		for _, image := range manifest {
			for _, tag := range image.RepoTags {
				if err := n.pullImage(ctx, archive, tag); err != nil {
					return fmt.Errorf("%s of %s: %w", tag, archive, err)
				}
			}
		}
	}
	return nil
}

func (n *Node) pullImage(ctx context.Context, archive, image string) error {
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	content, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		return err
	}
	to, err := name.NewTag(n.mirror()+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
	if err != nil {
		return err
	}
	if err := remote.Write(to, content, remote.WithContext(ctx)); err != nil {
		return err
	}
	return inspect.PullImage(ctx, n.Root(), image)
}

// useRegistryCRIO writes what CRI-O reads when it is told to.
func (n *Node) useRegistryCRIO(ctx context.Context, addr string) error {
	err := n.write("/etc/containers/registries.conf.d/"+strings.ReplaceAll(addr, ":", "-")+".conf",
		fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", addr))
	if err != nil {
		return err
	}
	_, err = n.Machine().Run(ctx, "kill", "-HUP", fmt.Sprint(n.Machine().Services()[ContainerRuntime]))
	return err
}

// forgetCRIO removes a container from the records of CRI-O, which does not run.
func (n *Node) forgetCRIO(id string) error {
	path := n.Root() + "/var/lib/containers/storage/overlay-containers/volatile-containers.json"
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var containers []map[string]any
	if err := json.Unmarshal(data, &containers); err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(containers), func(c map[string]any) bool { return c["id"] == id })
	if len(left) != len(containers)-1 {
		return errors.New("there is no record of it")
	}
	if data, err = json.Marshal(left); err != nil {
		return err
	}
	return writeFileMode(path, data, 0o600)
}

// loadedByCRIO returns an error unless CRI-O has loaded the CNI configuration since it changed,
// with this network as the default. Only its log says so.
func (n *Node) loadedByCRIO(network string) error {
	files, err := filepath.Glob(n.Root() + confDir + "/*")
	if err != nil {
		return err
	}
	var changed time.Time
	for _, path := range append(files, n.Root()+confDir) {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(changed) {
			changed = info.ModTime()
		}
	}
	log, err := os.ReadFile(n.cluster.Log(n.Name, ContainerRuntime))
	if err != nil {
		return err
	}
	loads := loadLines.FindAllStringSubmatch(string(log), -1)
	if len(loads) == 0 {
		return errors.New("CRI-O has loaded no network")
	}
	last := loads[len(loads)-1]
	at, err := time.Parse(time.RFC3339Nano, last[1])
	if err != nil || !at.Before(changed) && last[2] == network {
		return err
	}
	err = fmt.Errorf("CRI-O has loaded %s at %s, and the configuration changed at %s", last[2], last[1], changed)
	if time.Since(changed) > 5*time.Second {
		// On a busy machine CRI-O is told of a removal, and loads, before it can be seen.
		again := n.Root() + confDir + "/.again"
		return errors.Join(err, os.WriteFile(again, nil, 0o600), os.Remove(again))
	}
	return err
}

var loadLines = regexp.MustCompile(`time="([^"]*)" .*Updated default CNI network name to ([^"]*)"`)
