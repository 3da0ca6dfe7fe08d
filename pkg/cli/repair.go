package cli

import (
	"regexp"
	"strings"
)

// The functions and constants of this file are all commands that doctor prints as repairs. Many
// people run a command before they have read why it is printed, so a command is here only if it can
// do no harm in any state in which it is printed: it takes away no network, no address, no file and
// no pod of a user, and replaces nothing that somebody may have written on purpose. What does not
// meet that is no repair but a decision, and Finding.Decide describes it.

// NameLeasehold returns the command that names leasehold in a configuration file. It keeps the
// former file, and changes nothing if the plugin is not in one of the directories. The caller must
// know that the plugin of the configuration calls the IPAM plugin that its ipam section names
// (cniconf.Status.CanName): others, such as Canal's, would fail each ADD.
func NameLeasehold(file string, pluginDirs []string) string {
	return ShellCommand("leasectl", "install", "--conf="+file, "--cni-bin-dir="+strings.Join(pluginDirs, ","), "--yes")
}

// PassAnnotations returns the command that lets the runtime pass the annotations of pods to the
// plugins of a configuration file. It keeps the former file. Plugins ignore what they do not read.
func PassAnnotations(file string) string {
	return ShellCommand("leasectl", "install", "--conf="+file, "--pod-annotations", "--yes")
}

// RecoverStore returns the command that does what the next call of the plugin does with a lost
// store, and the agent with a damaged record. It never accepts a loss. flags select the pool.
func RecoverStore(flags ...string) string {
	return ShellCommand(append([]string{"leasectl", "recover"}, flags...)...)
}

const (
	// RestartAgents restarts the pods of the agents, whose init containers install the plugin on
	// each node. The plugin serves calls without them.
	RestartAgents = "kubectl -n " + Namespace + " rollout restart daemonset/" + AgentName
	// RestartManager restarts the pods of the manager one after the other. They fill the Secret and
	// write the CA into the webhooks when they start. Pods start without them.
	RestartManager = "kubectl -n " + Namespace + " rollout restart deployment/" + ManagerName
)

// ReplaceAgent returns the command that deletes an agent's pod, which its DaemonSet creates again.
func ReplaceAgent(pod string) string {
	return ShellCommand("kubectl", "-n", Namespace, "delete", "pod", pod)
}

// The names of leasehold's namespace and workloads. AgentName is also that of the agent's program.
const (
	Namespace   = "leasehold-system"
	AgentName   = "leasehold-agent"
	ManagerName = "leasehold-manager"
)

// IsOfNode reports whether a repair is one of those that leasectl prints on a node. If somebody
// else controls the node, it may print any.
func IsOfNode(repair string) bool { return repair == RestartAgents || ofNode.MatchString(repair) }

// plainText is a character that a shell leaves as it is.
const plainText = `[A-Za-z0-9_./:=,@%+-]`

var (
	harmless = regexp.MustCompile(`^` + plainText + `+$`)
	ofNode   = regexp.MustCompile(`^leasectl (install|recover)( (` + plainText + `|'[^'\n]*'|\\')+)*$`)
)

// ShellCommand returns a command line for a shell. Words that a shell would change are quoted.
func ShellCommand(words ...string) string {
	for i, w := range words {
		if !harmless.MatchString(w) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
