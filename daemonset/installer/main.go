// Installer installs and removes leasehold's CNI plugin on a node. It runs in containers of the
// agent's DaemonSet. The first argument is the command:
//
//	installer install    copies leasehold's plugin to the directory of CNI plugins
//	installer replace    replaces host-local's binary with leasehold's plugin and keeps the original;
//	                     with --watch, it continues to run, and replaces host-local again whenever
//	                     another program has installed it again
//	installer uninstall  names host-local in configurations that name leasehold, restores host-local
//	                     if it was replaced, ends all holds, and removes leasehold's files from the
//	                     node; with --dry-run, it only says whether it can do that
//	installer idle       does nothing until it gets a signal, to keep a pod running
//	installer version    prints the version
//
// The program first changes its root directory to that of the host (--host-root). So paths and
// symbolic links are resolved as on the host, also if they lead out of the directory of plugins
// (k3s) or change with an upgrade (snap).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

var version string // set at link time

// exitFailed is the exit code if the command failed; standard error has the reason.
const exitFailed = 1

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "installer:", err)
		os.Exit(exitFailed)
	}
}

// options are the values of the flags.
type options struct {
	from, to, root string
	confDirs       string
	watch, dryRun  bool
}

// parseFlags parses the arguments after a command. Each command has the flags that it uses.
func parseFlags(command string, args []string) (o options, err error) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	if command != "idle" {
		flags.StringVar(&o.to, "to", "/opt/cni/bin", "the node's `directory` of plugins")
		flags.StringVar(&o.root, "host-root", "/", "root of the host's file system: / or /proc/<pid>/root")
	}
	switch command {
	case "replace":
		flags.BoolVar(&o.watch, "watch", false, "stay, and replace host-local again when it is installed again")
		fallthrough
	case "install":
		flags.StringVar(&o.from, "from", "/leasehold", "`path` of the plugin, before the root directory is changed")
	case "uninstall":
		flags.StringVar(&o.confDirs, "cni-conf-dir", "/etc/cni/net.d",
			"the runtime's `directories` of configurations, separated by commas")
		flags.BoolVar(&o.dryRun, "dry-run", false, "say whether that is possible, and change nothing")
	case "idle":
	default:
		return o, fmt.Errorf("unknown command %q; want %s", command, commands)
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, nil
}

const commands = "install, replace, uninstall, idle or version"

// run runs the command in args[0].
func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command; want %s", commands)
	}
	command := args[0]
	if command == "version" || command == "--version" {
		fmt.Println("installer", env.Version(version))
		return nil
	}
	o, err := parseFlags(command, args[1:])
	if err != nil {
		return err
	}
	if command == "idle" {
		<-ctx.Done()
		return nil
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	node, err := env.Read(os.Getenv)
	if err != nil {
		return err
	}
	if command == "uninstall" {
		answer := openAnswer()
		text, err := uninstall(ctx, o, node, log)
		if err != nil {
			text = err.Error()
		}
		answer(text)
		return err
	}
	plugin, err := os.Open(o.from)
	if err != nil {
		return err
	}
	defer plugin.Close()
	if _, err = host.EnterHostRoot(o.root, node.Host); err != nil {
		return err
	}
	plugins, install, text := bin(o.to), bin.install, "leasehold is installed"
	if command == "replace" {
		install, text = bin.replace, "leasehold is in host-local's place"
	}
	done, err := install(plugins, plugin)
	if err != nil {
		return err
	}
	log.Info(text, "directory", o.to, "changed", done)
	if o.watch {
		w := watcher{bin: plugins, program: plugin, log: log}
		w.run(ctx)
	}
	return nil
}

// uninstall removes leasehold from the node, or with o.dryRun says whether that is possible. It
// returns what a person should know.
func uninstall(ctx context.Context, o options, node env.Node, log *slog.Logger) (text string, err error) {
	if node.Host, err = host.EnterHostRoot(o.root, node.Host); err != nil {
		return "", err
	}
	u := uninstaller{
		bin: bin(o.to), confDirs: strings.Split(o.confDirs, ","), proc: "/proc", node: node, log: log,
		replays: append([]string{"/var/lib/cni/flannel"}, adopt.DefaultCacheDirs...),
		service: &maintain.Service{Node: &transact.Node{
			Store: store.New(node.Dirs), Host: node.Host, Clock: node.Clock,
			Warn: func(text string) { log.Warn(text) },
		}},
	}
	if text, err = u.run(ctx, o.dryRun); err == nil {
		log.Info(map[bool]string{true: "leasehold can be removed from the node",
			false: "leasehold is removed from the node"}[o.dryRun], "directory", o.to)
	}
	return text, err
}

// openAnswer returns a function that writes the termination message of the container. The kubelet
// copies it to the pod's status, where leasectl reads it. The file is opened before the root
// directory is changed. Outside of a container there is none.
func openAnswer() func(string) {
	f, err := os.OpenFile("/dev/termination-log", os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return func(string) {}
	}
	return func(text string) {
		fmt.Fprint(f, text)
		f.Close()
	}
}
