package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

// written returns the names in the root directory.
func (n node) written() map[string]bool {
	n.t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(n.root, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(n.root, path); rel != "." {
			found[strings.Split(rel, "/")[0]] = true
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

// TestInvalidInput verifies that invalid input results in a CNI error object on stdout and a failed
// exit, that nothing is written outside the state directories, and that no address is leaked.
func TestInvalidInput(t *testing.T) {
	const annotations = `"io.kubernetes.cri.pod-annotations":{"io.kubernetes.cri/reserved-ip-duration":`
	type run struct {
		name, stdin string
		env         []string
		code        int
		want        string
	}
	n := newNode(t)
	runs := []run{
		{"empty stdin", "", nil, 6, "unexpected end of JSON input"},
		{"invalid JSON", `{"name":`, nil, 6, "unexpected end of JSON input"},
		{"a JSON array", `[]`, nil, 6, "cannot unmarshal array"},
		{"ipam missing", `{"cniVersion":"1.0.0","name":"net"}`, nil, 7, "ipam: missing"},
		{"overlapping ranges", n.conf(`,"ranges":[[{"subnet":"10.0.0.0/24"}]]`), nil, 7, "range sets overlap"},
		{"a network name with ..", strings.Replace(n.conf(""), `"net"`, `"../../etc/x"`, 1), nil, 7, "../../etc/x"},
		{"a network name of 10 kB", strings.Replace(n.conf(""), `"net"`, `"`+strings.Repeat("n", 10000)+`"`, 1), nil, 7,
			"want at most 255 characters"},
		{"a network name with a newline", strings.Replace(n.conf(""), `"net"`, `"a\nb"`, 1), nil, 7,
			"invalid characters"},
		{"a container ID with ..", n.conf(""), []string{"CNI_CONTAINERID=../x"}, 4,
			"invalid characters in containerID"},
		{"a container ID of 10 kB", n.conf(""), []string{"CNI_CONTAINERID=" + strings.Repeat("c", 10000)}, 4,
			"at most 128"},
		{"an interface with ..", n.conf(""), []string{"CNI_IFNAME=../x"}, 4, "interface name contains"},
		{"a pod name with ..", n.conf(""), []string{"CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=../../etc/x"}, 4,
			"K8S_POD_NAME="},
		{"a namespace with a newline", n.conf(""), []string{"CNI_ARGS=K8S_POD_NAMESPACE=a\nb;K8S_POD_NAME=c"}, 4,
			`K8S_POD_NAMESPACE=\"a\\nb\"`},
		{"a pod name of 10 kB", n.conf(""), []string{"CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("x",
			10000)}, 4, "(10000 bytes)"},
		{"two pod names", n.conf(""), []string{"CNI_ARGS=K8S_POD_NAME=b;K8S_POD_NAMESPACE=a;K8S_POD_NAME=c"}, 4,
			"K8S_POD_NAME is both"},
		{"an unknown key", n.conf(""), []string{"CNI_ARGS=X_K8S_POD_NAME=b"}, 4, "unknown pair"},
		{"a network namespace that does not exist", n.conf(""), []string{"CNI_ARGS=K8S_POD_NAME=b;K8S_POD_NAMESPACE=a"},
			4, "CNI_NETNS"},
		{"an unsupported CNI version", strings.Replace(n.conf(""), "1.0.0", "9.9.9", 1), nil, 1,
			"incompatible CNI versions"},
	}
	for _, value := range []string{`"abc"`, `"-5"`, `"1e3"`, `""`, `" 10 "`, `"99999999999999999999"`, `"153722868"`,
		`5`, `null`, `{}`} {
		stdin := strings.TrimSuffix(n.conf(""), "}") + `,"runtimeConfig":{` + annotations + value + `}}}`
		runs = append(runs, run{"the annotation " + value, stdin, nil, 7,
			"annotation io.kubernetes.cri/reserved-ip-duration: "})
	}
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			n := node{t, n.root}
			stdout, ok := n.call("ADD", r.stdin, r.env...)
			var e struct {
				Code         int
				Msg, Details string
			}
			if err := json.Unmarshal([]byte(stdout), &e); err != nil || ok {
				t.Fatalf("succeeded: %t, printed %q; want one error object (%v)", ok, stdout, err)
			}
			if e.Code != r.code || e.Msg == "" || !strings.Contains(stdout, r.want) {
				t.Errorf("printed %s, want code %d and %q", stdout, r.code, r.want)
			}
			if len(stdout) > 1000 && r.code != 4 { // skel repeats an invalid container ID in full
				t.Errorf("the error object has %d bytes", len(stdout))
			}
		})
	}

	if stdout, ok := n.call("ADD", n.conf("")); !ok || !strings.Contains(stdout, `"10.0.0.2/30"`) {
		t.Errorf("the only address was leaked: %s", stdout)
	}
	for name := range n.written() {
		if name != "state" && name != "run" && name != "nets" {
			t.Errorf("%s was written", name)
		}
	}
}

// TestNullAnnotations verifies that ADD accepts null, which containerd passes for a pod without
// annotations.
func TestNullAnnotations(t *testing.T) {
	n := newNode(t)
	stdin := strings.TrimSuffix(n.conf(""), "}") + `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null}}`
	if stdout, ok := n.call("ADD", stdin); !ok {
		t.Error(stdout)
	}
}

// TestDelWithAnyConfiguration verifies that DEL releases the address with any configuration and
// environment.
func TestDelWithAnyConfiguration(t *testing.T) {
	n := newNode(t)
	for _, stdin := range []string{
		`{"name":"net"}`, `{"name":"other","ipam":null}`, `{"name":"net","ipam":"x"}`,
		`{"name":"net","cniVersion":"0.4.0","ipam":{"ranges":[[]]},"prevResult":5}`,
	} {
		for _, env := range [][]string{nil, {"CNI_NETNS="}, {"CNI_ARGS=x;;="}} {
			if stdout, ok := n.call("ADD", n.conf(`,"softHold":"0s"`)); !ok {
				t.Fatalf("the address was not free: %s", stdout)
			}
			for range 2 {
				if stdout, ok := n.call("DEL", stdin, env...); !ok || stdout != "" {
					t.Errorf("DEL with %s and %v: %s", stdin, env, stdout)
				}
			}
		}
		if stdout, ok := n.call("ADD", n.conf(`,"softHold":"0s"`), "CNI_CONTAINERID=c2"); !ok {
			t.Errorf("ADD of another container after DEL with %s: %s", stdin, stdout)
		}
		n.call("DEL", stdin, "CNI_CONTAINERID=c2")
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
	cmd := n.command("ADD", n.conf(`,"softHold":"0s"`))
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
	if len(n.written()) > 0 {
		t.Errorf("VERSION wrote %v", n.written())
	}
}
