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

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
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
	pods, err := c.agents(ctx)
	if err != nil {
		return nil, err
	}
	all := []nodeEntry{}
	for i, p := range pods {
		c.say("reading the journal of node %s (%d of %d)", p.Node, i+1, len(pods))
		var entries []store.Entry
		if e := c.ReadNode(ctx, p.Pod, &entries, append([]string{"history"}, args...)...); e != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", p.Node, e))
			continue
		}
		for _, n := range entries {
			all = append(all, nodeEntry{p.Node, n})
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
			chosen, err := c.reservations(cmd.Context(), func(r kubectl.Object) bool { return !held || isHeld(r) })
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				fmt.Fprintln(c.Stderr, "there is no such reservation")
				return errProblems
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
func (c *cluster) releaseAll(ctx context.Context, all []kubectl.Object, wait time.Duration) error {
	held := map[string]bool{} // by the lease's id
	for _, r := range all {
		id := r.Text("status", "id")
		held[id] = isHeld(r)
		_, err := c.Run(ctx, nil, "-n", r.Text("metadata", "namespace"), "patch", reservationKind,
			r.Text("metadata", "name"), "--type=merge", "-p", fmt.Sprintf(`{"spec":{"release":%q}}`, id))
		if err != nil {
			return err
		}
	}
	var left []kubectl.Object
	done, err := poll(ctx, wait, func() (bool, error) {
		var err error
		left, err = c.reservations(ctx, func(r kubectl.Object) bool {
			return isHeld(r) && held[r.Text("status", "id")]
		})
		return len(left) == 0, err
	})
	if err != nil {
		return err
	}
	if !done && wait > 0 {
		first := left[0]
		return fmt.Errorf("after %s %d of %d are still held, the first for %s/%s on node %s; 'kubectl leasehold "+
			"doctor' says whether its agent works", wait, len(left), len(all), first.Text("metadata", "namespace"),
			first.Text("spec", "podName"), first.Text("spec", "nodeName"))
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

// piece is one file of a bundle: what kubectl prints for the arguments.
type piece struct {
	name string
	args []string
}

// writeBundle writes the archive. What could not be read is listed in its errors.txt.
func (c *cluster) writeBundle(ctx context.Context, w io.Writer) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	var problems strings.Builder
	add := func(name string, content []byte) error {
		head := &tar.Header{Name: "leasehold/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: c.Clock().Wall}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	pieces, err := c.pieces(ctx)
	if err != nil {
		fmt.Fprintln(&problems, err)
	}
	for i, p := range pieces {
		c.say("%s (%d of %d)", p.name, i+1, len(pieces))
		content, err := c.read(ctx, p)
		if err != nil {
			fmt.Fprintf(&problems, "%s: %v\n", p.name, err)
		}
		if len(content) == 0 {
			continue
		}
		if err := add(p.name, content); err != nil {
			return err
		}
	}
	return errors.Join(add("errors.txt", []byte(problems.String())), archive.Close(), zip.Close())
}

// read returns the content of a piece. If it is JSON, it has no secrets, and an error is only the
// exit status for findings.
func (c *cluster) read(ctx context.Context, p piece) ([]byte, error) {
	if p.args == nil {
		return json.MarshalIndent(c.examine(ctx, true), "", "  ")
	}
	content, err := c.Run(ctx, nil, p.args...)
	var value any
	if strings.HasSuffix(p.name, ".json") && json.Unmarshal(content, &value) == nil {
		return json.MarshalIndent(withoutSecrets(value), "", " ")
	}
	return content, err
}

// pieces returns the files of a bundle. The error is about the pods whose files are missing from
// the result.
func (c *cluster) pieces(ctx context.Context) (all []piece, err error) {
	in := "--namespace=" + c.Namespace
	for _, o := range []piece{
		{"agents", []string{"daemonset", in}}, {"crds", []string{"crd", "-l", partOf}},
		{"events", []string{"events", in}}, {"managers", []string{"deployment", in}}, {"pods", []string{"pod", in}},
		{"policies", []string{"validatingadmissionpolicy", "-l", partOf}}, {"pools", []string{poolKind}},
		{"reservations", []string{reservationKind, "-A"}},
		{"webhooks", []string{"mutatingwebhookconfiguration", "-l", partOf}},
	} {
		all = append(all, piece{"objects/" + o.name + ".json", append([]string{"get", "-o", "json"}, o.args...)})
	}
	all = append(all, piece{name: "doctor.json"})
	pods, err := c.Own(ctx, "pod")
	for _, p := range pods.List("items") {
		if name := p.Text("metadata", "name"); c.node == "" || p.Text("spec", "nodeName") == c.node {
			all = append(all, piece{"logs/" + name + ".log", []string{in, "logs", name, "--all-containers", "--prefix",
				"--timestamps", "--tail=20000", "--ignore-errors"}})
		}
	}
	agents, e := c.agents(ctx)
	for _, p := range agents {
		for _, verb := range []string{"list", "pools", "history", "check", "doctor"} {
			all = append(all, piece{"nodes/" + p.Node + "/" + verb + ".json", c.OnNode(p.Pod, verb, "-o", "json")})
		}
	}
	return all, errors.Join(err, e)
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
