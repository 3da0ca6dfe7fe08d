package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asPlugin is the environment variable that makes the test binary run as the plugin.
const asPlugin = "LEASEHOLD_TEST_AS_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// node is a directory with the state of a plugin whose pool has one address.
type node struct {
	t    *testing.T
	root string
}

func newNode(t *testing.T) node { return node{t, t.TempDir()} }

// conf returns a valid configuration with one address, and with additional fields in ipam.
func (n node) conf(fields string) string {
	return `{"cniVersion":"1.0.0","name":"net","ipam":{"type":"leasehold","subnet":"10.0.0.0/30","dataDir":"` + n.root +
		`/nets"` + fields + `}}`
}

// command returns a command that runs the plugin. env overrides the default variables.
func (n node) command(verb, stdin string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Dir = n.root
	cmd.Env = append([]string{
		asPlugin + "=1", "CNI_PATH=/nowhere", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0",
		"CNI_NETNS=/does/not/exist",
		"LEASEHOLD_STATE_DIR=" + n.root + "/state", "LEASEHOLD_RUN_DIR=" + n.root + "/run",
	}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// call runs the plugin and returns its output and whether it succeeded.
func (n node) call(verb, stdin string, env ...string) (stdout string, ok bool) {
	n.t.Helper()
	cmd := n.command(verb, stdin, env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	if bytes.Contains(stderr.Bytes(), []byte("panic")) {
		n.t.Errorf("stderr: %s", &stderr)
	}
	return out.String(), err == nil
}

// TestInvalidInput verifies that paths in names result in one CNI error object and a failed exit,
// that nothing is written outside of the plugin's directories, and that no address is leaked.
func TestInvalidInput(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		stdin, env string
		code       int
	}{
		"an empty stdin":    {"", "", 6},
		"a network":         {strings.Replace(n.conf(""), `"net"`, `"../../etc/x"`, 1), "", 7},
		"a container ID":    {n.conf(""), "CNI_CONTAINERID=../x", 4},
		"an interface":      {n.conf(""), "CNI_IFNAME=../x", 4},
		"a requested IP":    {n.conf(""), "CNI_ARGS=IP=../x", 4},
		"a missing sandbox": {n.conf(""), "CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", 4},
	} {
		stdout, ok := n.call("ADD", c.stdin, c.env)
		var e struct{ Code int }
		if err := json.Unmarshal([]byte(stdout), &e); err != nil || ok || e.Code != c.code {
			t.Errorf("%s: succeeded: %t, printed %s (%v); want one error object with code %d",
				name, ok, stdout, err, c.code)
		}
	}
	if stdout, ok := n.call("ADD", n.conf("")); !ok || !strings.Contains(stdout, `"10.0.0.2/30"`) {
		t.Errorf("the only address was leaked: %s", stdout)
	}
	list, err := os.ReadDir(n.root)
	for _, d := range list {
		if d.Name() != "state" && d.Name() != "run" && d.Name() != "nets" {
			t.Errorf("%s was written", d.Name())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestClosedStdout verifies that ADD fails and releases the address if the result cannot be
// printed.
func TestClosedStdout(t *testing.T) {
	n := newNode(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	cmd := n.command("ADD", n.conf(`,"coolDown":"0s"`))
	cmd.Stdout = write
	if err := cmd.Run(); err == nil {
		t.Error("ADD succeeded with stdout closed")
	}
	write.Close()
	if stdout, ok := n.call("ADD", n.conf(""), "CNI_CONTAINERID=c2"); !ok {
		t.Errorf("its address was leaked: %s", stdout)
	}
}

func TestVersionAndAbout(t *testing.T) {
	n := newNode(t)
	stdout, ok := n.call("VERSION", "")
	var v struct{ SupportedVersions []string }
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || !ok || len(v.SupportedVersions) != 7 {
		t.Errorf("VERSION: %s (%v), want the seven versions from 0.1.0 to 1.1.0", stdout, err)
	}
	if stdout, ok := n.call("", ""); !ok || stdout != "" {
		t.Errorf("without a verb: %q, want nothing on stdout", stdout)
	}
	if stdout, ok := n.call("VERSION", "", "LEASEHOLD_CLOCK_OFFSET=x"); ok || !strings.Contains(stdout, `"code": 4`) ||
		!strings.Contains(stdout, "LEASEHOLD_CLOCK_OFFSET") {
		t.Errorf("an invalid variable: %s, want code 4 and its name", stdout)
	}
	if list, err := os.ReadDir(n.root); err != nil || len(list) > 0 {
		t.Errorf("VERSION wrote %v (%v)", list, err)
	}
}
