package cli

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/install"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// nodeEntry is a journal entry and its node. Its fields are a stable interface.
type nodeEntry struct {
	Node string `json:"node"`
	store.Entry
}

func (c *cluster) history() *cobra.Command {
	command := &cobra.Command{
		Use:   "history [address | namespace/pod]",
		Short: "Show which pods had an address, when, and why it changed",
		Long: `Print the journal entries of an address, of a pod, or all, of each node, oldest
first. Each node keeps its last entries, also when it boots: an event JournalBegins has
the time from which they are complete. Nodes without a running agent, and nodes that
have left the cluster, are not asked. It runs leasectl in the pods of the agents, which
needs the right to create pods/exec in leasehold's namespace.`,
		Example: "  kubectl leasehold history 10.244.1.7\n  kubectl leasehold history db/db-0 --node=node1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.parse(args); err != nil {
				return err
			}
			entries, err := c.journals(cmd.Context(), args)
			const heads = "TIME NODE EVENT ADDRESS POD REASON"
			return errors.Join(err, printRows(c.app, entries, heads, func(n nodeEntry) []string {
				return []string{n.Time.Format(time.RFC3339), n.Node, string(n.Event), addressText(n.Address),
					qualified(n.Namespace, n.Name), n.Reason}
			}))
		},
	}
	c.outputFlag(command)
	c.nodeFlag(command)
	return command
}

// journals returns the journal entries of all nodes, sorted by time. It returns an error if it
// could not read the journals of some nodes, together with the entries of the others.
func (c *cluster) journals(ctx context.Context, args []string) ([]nodeEntry, error) {
	pods, err := c.someAgents(ctx)
	all := []nodeEntry{}
	for i, p := range pods {
		c.say("reading the journal of node %s (%d of %d)", nodeOf(p), i+1, len(pods))
		var entries []store.Entry
		if e := c.readNode(ctx, p, &entries, append([]string{"history"}, args...)...); e != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", nodeOf(p), e))
			continue
		}
		for _, n := range entries {
			all = append(all, nodeEntry{nodeOf(p), n})
		}
	}
	slices.SortStableFunc(all, func(a, b nodeEntry) int { return a.Time.Compare(b.Time) })
	return all, err
}

func (c *cluster) release() *cobra.Command {
	var held, yes, dryRun bool
	var wait time.Duration
	command := &cobra.Command{
		Use:   "release [address | namespace/pod]",
		Short: "Release an address, the addresses of a pod, or those of a namespace",
		Long: `Release addresses that are kept for pods, so that other pods can get them. It shows
them first, and asks. An address that is held is free at once. A pod that runs keeps
its address until it ends, and the next pod of its name gets another one.

It writes spec.release of the IPReservations, which admins of a namespace may; the
agents of the nodes do the rest.`,
		Example: "  kubectl leasehold release db/db-0\n  kubectl leasehold release --namespace=db --held\n" +
			"  kubectl leasehold release --reserve-as=db/registry --held\n" +
			"  kubectl leasehold release --node=node7 --held --dry-run",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && c.namespace == "" && c.node == "" && c.reserveAs == "" {
				return usage("name an address, a pod, --reserve-as, --namespace or --node")
			}
			if err := c.parse(args); err != nil {
				return err
			}
			chosen, err := c.reservations(cmd.Context(), func(r object) bool { return !held || isHeld(r) })
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				return errors.New("there is no such reservation")
			}
			if err := c.printReservations(chosen); err != nil || dryRun {
				return err
			}
			if !yes && !c.ask(cmd.InOrStdin(), fmt.Sprintf("Release these %d?", len(chosen))) {
				return nil
			}
			return c.releaseAll(cmd.Context(), chosen, wait)
		},
	}
	f := command.Flags()
	c.nodeFlag(command)
	c.outputFlag(command)
	c.reserveAsFlag(command)
	f.StringVarP(&c.namespace, "namespace", "n", "", "only pods of this namespace; if empty, of all")
	f.BoolVar(&held, "held", false, "only addresses of pods that are away")
	f.BoolVar(&yes, "yes", false, "do not ask")
	f.BoolVar(&dryRun, "dry-run", false, "show what would be released, and stop")
	f.DurationVar(&wait, "wait", 30*time.Second, "how long to wait for the agents; 0: not at all")
	return command
}

// releaseAll requests the release of reservations. Then it waits until the agents have released
// those that were held, and returns an error if that takes longer than wait. With wait 0 it does
// not wait.
func (c *cluster) releaseAll(ctx context.Context, all []object, wait time.Duration) error {
	held := map[string]bool{} // by the lease's id
	for _, r := range all {
		id := r.Text("status", "id")
		held[id] = isHeld(r)
		if err := c.patch(ctx, namespaceOf(r), reservationKind, nameOf(r), "merge",
			object{"spec": object{"release": id}}); err != nil {
			return err
		}
	}
	if wait > 0 {
		if err := install.Retry(ctx, wait, func() error {
			left, err := c.reservations(ctx, func(r object) bool { return isHeld(r) && held[r.Text("status", "id")] })
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("after %s %d of %d are still held, the first for %s/%s on node %s; 'kubectl "+
					"leasehold doctor' says whether its agent works", wait, len(left), len(all), namespaceOf(left[0]),
					left[0].Text("spec", "podName"), nodeOf(left[0]))
			}
			return err
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.Stderr, "%d released\n", len(all))
	return nil
}

// bundle returns the command that writes an archive with what a bug report needs.
func (c *cluster) bundle() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "bundle",
		Short: "Collect what a report of a problem needs in one archive",
		Long: `Write an archive with leasehold's own objects, the logs of its pods, the findings of
doctor, and the leases and journal of each node. No Secret is in it, and no pods but
leasehold's own; environments and annotations are left out of what is. Names and
addresses of pods are in it.

Nodes are read in the pods of their agents, which needs the right to create pods/exec
in leasehold's namespace. What could not be read is listed in errors.txt.`,
		Example: "  kubectl leasehold bundle\n  kubectl leasehold bundle --file=/tmp/b.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				file = "leasehold-" + c.Clock().Wall.Format("20060102T150405Z") + ".tar.gz"
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			if err := errors.Join(c.writeBundle(cmd.Context(), out), out.Close()); err != nil {
				return err
			}
			fmt.Fprintln(c.Stdout, file)
			return nil
		},
	}
	c.nodeFlag(command)
	command.Flags().StringVar(&file, "file", "", "`path` of the archive (default leasehold-<time>.tar.gz)")
	return command
}

// writeBundle writes the archive. What could not be read is listed in its errors.txt.
func (c *cluster) writeBundle(ctx context.Context, w io.Writer) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	var problems strings.Builder
	note := func(name string, err error) {
		if err != nil {
			fmt.Fprintf(&problems, "%s: %v\n", name, err)
		}
	}
	add := func(name string, content []byte) { // archive.Close returns the first error
		_ = archive.WriteHeader(&tar.Header{Name: "leasehold/" + name, Mode: 0o600, Size: int64(len(content)),
			ModTime: c.Clock().Wall})
		_, _ = archive.Write(content)
	}
	read := func(name string, args ...string) {
		c.say("%s", name)
		content, err := c.kubectl(ctx, nil, args...)
		var value any
		if strings.HasSuffix(name, ".json") && json.Unmarshal(content, &value) == nil {
			content, err = json.MarshalIndent(withoutSecrets(value), "", " ") // it was the exit status for findings
		}
		note(name, err)
		if len(content) > 0 {
			add(name, content)
		}
	}
	in := "--namespace=" + c.system
	for name, args := range map[string][]string{
		"agents": {"daemonset", in}, "crds": {"crd", "-l", partOf}, "events": {"events", in},
		"managers": {"deployment", in}, "pods": {"pod", in},
		"policies": {"validatingadmissionpolicy", "-l", partOf}, "pools": {poolKind},
		"reservations": {reservationKind, "-A"}, "webhooks": {"mutatingwebhookconfiguration", "-l", partOf},
	} {
		read("objects/"+name+".json", append([]string{"get", "-o", "json"}, args...)...)
	}
	report, err := json.MarshalIndent(c.examine(ctx, true), "", "  ")
	note("doctor.json", err)
	add("doctor.json", report)
	pods, err := c.items(ctx, in, "pod")
	note("logs", err)
	for _, p := range pods {
		if c.node == "" || nodeOf(p) == c.node {
			read("logs/"+nameOf(p)+".log", in, "logs", nameOf(p), "--all-containers", "--prefix", "--timestamps",
				"--tail=20000", "--ignore-errors")
		}
	}
	agents, err := c.someAgents(ctx)
	note("nodes", err)
	for _, p := range agents {
		for _, verb := range []string{"list", "pools", "history", "check"} { // doctor.json has the rest
			read("nodes/"+nodeOf(p)+"/"+verb+".json", c.onNode(p, verb, "-o", "json")...)
		}
	}
	add("errors.txt", []byte(problems.String()))
	return errors.Join(archive.Close(), zip.Close())
}

// withoutSecrets removes the fields that may contain secrets from a decoded object, and returns the
// object. These fields are environments, and annotations, because kubectl stores whole manifests in
// an annotation.
func withoutSecrets(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = withoutSecrets(v[i])
		}
	case map[string]any:
		for _, key := range []string{"env", "envFrom", "annotations", "managedFields", "data", "stringData"} {
			delete(v, key)
		}
		for key := range v {
			v[key] = withoutSecrets(v[key])
		}
	}
	return value
}
