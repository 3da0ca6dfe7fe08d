package cluster

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
)

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
		c.Say("%s", name)
		ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
		defer cancel()
		content, err := c.kubectl(ctx, nil, args...)
		var value any
		if strings.HasSuffix(name, ".json") && json.Unmarshal(content, &value) == nil {
			withoutSecrets(value)
			content, err = json.MarshalIndent(value, "", " ") // it was the exit status for findings
		}
		note(name, err)
		if len(content) > 0 {
			add(name, content)
		}
	}
	in := "--namespace=" + cli.Namespace
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

// withoutSecrets removes the fields that may contain secrets from a decoded object: environments,
// and annotations, because kubectl stores whole manifests in an annotation.
func withoutSecrets(value any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			withoutSecrets(element)
		}
	case map[string]any:
		for _, key := range []string{"env", "envFrom", "annotations", "managedFields", "data", "stringData"} {
			delete(v, key)
		}
		for _, field := range v {
			withoutSecrets(field)
		}
	}
}
