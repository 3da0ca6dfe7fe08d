package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// kruiseTree is the fork's directory. It is among the directories of the networks (docs/facts.md,
// "Its reservations are files beside the networks"). A network of that name has its files there as
// well.
const kruiseTree = "reserved"

// kruiseFile is a reservation of the Kruise fork: one address of a pod, without its network
// (docs/facts.md, "Its reservations are files beside the networks"). It is matched with other
// candidates by its address, because its container id may differ from that in host-local's file
// (docs/facts.md, "Its files contradict host-local's").
type kruiseFile struct {
	ContainerID string `json:"containerId"`
	IfName      string `json:"ifName"`
	IPConf      struct {
		Address string `json:"address"`
	} `json:"IPConf"`
	Duration    int64      `json:"duration"` // minutes, although the fork's type says nanoseconds
	ReleaseTime *time.Time `json:"releaseTime"`
}

// kruise returns the candidates of the fork's files, <dataDir>/reserved/<namespace>/<pod>. Their
// directories have mode 000, which does not affect root.
func kruise(dataDir string, notes *notes) []candidate {
	tree := filepath.Join(dataDir, kruiseTree)
	var out []candidate
	for _, namespace := range listKruise(tree, notes) {
		for _, name := range listKruise(filepath.Join(tree, namespace), notes) {
			if !hostlocal.IsPod(namespace, name) {
				continue
			}
			path := filepath.Join(tree, namespace, name)
			c, err := readKruise(path)
			if err != nil {
				notes.add("ignored Kruise's reservation %s: %v", path, err)
				continue
			}
			c.Namespace, c.Name = namespace, name
			out = append(out, c)
		}
	}
	return out
}

func listKruise(dir string, notes *notes) []string {
	out, err := files.List(dir)
	if err != nil {
		notes.add("Kruise's reservations cannot be listed: %v", err)
	}
	return out
}

func readKruise(path string) (candidate, error) {
	b, modified, err := files.Read(path)
	if err != nil {
		return candidate{}, err
	}
	c, err := parseKruise(b)
	c.Modified, c.Source, c.path = modified, "Kruise's reservation "+path, path
	return c, err
}

// Convert moves reservations that were imported out of the fork's directory, so that no later
// import finds them. Those of other networks stay.
func Convert(reservations []string) error {
	var failed []error
	for _, path := range reservations {
		namespace := filepath.Dir(path)
		to := filepath.Join(filepath.Dir(namespace)+".converted", filepath.Base(namespace))
		err := os.MkdirAll(to, 0o700)
		if err == nil {
			err = os.Rename(path, filepath.Join(to, filepath.Base(path)))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// parseKruise parses one reservation. Its window is at most policy.MaxWindow, like that of the
// annotation. The fork has no limit; a longer window overflows there.
func parseKruise(b []byte) (candidate, error) {
	var f *kruiseFile
	if err := json.Unmarshal(b, &f); err != nil {
		return candidate{}, err
	}
	if f == nil {
		return candidate{}, errors.New("it is null")
	}
	addr, ok := hostlocal.ParseCIDR(f.IPConf.Address)
	if !ok || !hostlocal.IsIfName(f.IfName) || f.Duration < 0 {
		return candidate{}, fmt.Errorf("invalid address %s, interface %s or duration of %d minutes",
			policy.Quote(f.IPConf.Address), policy.Quote(f.IfName), f.Duration)
	}
	c := candidate{Kind: fromKruise, Address: addr, IfName: f.IfName, IsHold: true, WindowKnown: true}
	if hostlocal.IsContainerID(f.ContainerID) {
		c.ContainerID = f.ContainerID
	}
	c.Window = policy.MaxWindow
	if f.Duration < int64(time.Duration(policy.MaxWindow)/time.Minute) {
		c.Window = lease.Window(time.Duration(f.Duration) * time.Minute)
	}
	if f.ReleaseTime != nil {
		c.Released, c.Until = true, f.ReleaseTime.Add(time.Duration(c.Window))
	}
	return c, nil
}
