package cniconf

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/built"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// write creates files in a new directory, in the form of testdata/nodes.txt.
func write(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		put(t, filepath.Join(dir, name), text)
	}
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	err := error(nil)
	target, isLink := strings.CutPrefix(text, "-> ")
	switch {
	case isLink:
		err = os.Symlink(target, path)
	case text == "/":
		err = os.Mkdir(path, 0o755)
	default:
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	must.Succeed(t, err)
}

// putProgram creates a program of a node.
func putProgram(t *testing.T, path, what string) {
	t.Helper()
	switch what {
	case "ours":
		writeProgram(t, path, built.Plugin(t))
	case "not executable":
		writeProgram(t, path, built.Plugin(t))
		must.Succeed(t, os.Chmod(path, 0o644))
	case "other":
		copyFile(t, "/bin/true", path)
	case "unreadable":
		must.Succeed(t, os.Symlink("/proc/self/mem", path))
	case "link to itself":
		must.Succeed(t, os.Symlink(path, path))
	default:
		t.Fatalf("unknown kind of program %q", what)
	}
}

// programs are the programs of nodes, by the words of testdata/nodes.txt.
var programs = map[string]map[string]string{
	"stock": {"bridge": "other", "flannel": "other", "host-local": "other"},
	"named": {"bridge": "other", "flannel": "other", "host-local": "other", "leasehold": "ours"},
	"replaced": {"bridge": "other", "flannel": "other", "host-local": "ours",
		"host-local.original": "other"},
}

func TestNodes(t *testing.T) {
	for _, c := range cases.Read(t, "testdata/nodes.txt")[1:] {
		t.Run(c.Name, func(t *testing.T) {
			dir, bin, rules, all := t.TempDir(), t.TempDir(), Rules{}, map[string]string{}
			fill := strings.NewReplacer("{dir}", dir, "{bridge}", bridge, "{flannel}", flannel)
			for _, line := range c.Given {
				name, text, _ := strings.Cut(fill.Replace(line), " ")
				if strings.HasPrefix(text, `"`) {
					unquoted, err := strconv.Unquote(text)
					must.Succeed(t, err)
					text = unquoted
				}
				switch name {
				case "stock", "named", "replaced":
					maps.Copy(all, programs[name])
				case "bin":
					program, what, _ := strings.Cut(text, " ")
					all[program] = what
				case "rules":
					rules.SkipInvalid = text == "skip"
					rules.MaxFiles, _ = strconv.Atoi(text)
				case "conf-dir":
					dir = filepath.Join(dir, text)
				case "net":
					put(t, filepath.Join(dir, "10-net.conflist"),
						`{"name":"net","plugins":[{"type":"bridge","ipam":`+text+`}]}`)
				default:
					put(t, filepath.Join(dir, name), text)
				}
			}
			for name, what := range all {
				putProgram(t, filepath.Join(bin, name), what)
			}
			conf := Load(dir, rules)
			wantStates, states := []string{}, []string{}
			statuses := Check(conf, Binaries{bin})
			for _, s := range statuses {
				states = append(states, strings.TrimSpace(fmt.Sprint(s.State, " ", s.Reason, " ", s.Network)))
				if s.File == "" || s.Message == "" || strings.HasSuffix(s.Message, ".") {
					t.Errorf("file %q, message %q", s.File, s.Message)
				}
			}
			for _, line := range c.Want {
				key, want, _ := strings.Cut(fill.Replace(line), " ")
				got := ""
				switch s := statuses[0]; key {
				case "loaded":
					got = loaded(conf)
				case "is":
					wantStates = append(wantStates, want)
					continue
				case "says":
					if got = s.Message; strings.Contains(got, want) {
						continue
					}
				case "size":
					got = fmt.Sprint(s.Size)
				case "pool":
					got = strings.TrimSpace(s.Pool.DataDir + " " + s.Pool.Network)
				case "stdin":
					got = string(bytes.Join(s.Stdin, nil))
				case "undo-error":
					if _, err := conf.Undos(); err != nil && strings.Contains(err.Error(), want) {
						continue
					}
				}
				check.Equal(t, got, want, key)
			}
			if len(wantStates) > 0 && !slices.Equal(states, wantStates) {
				t.Errorf("it is %q: %s; want %q", states, statuses[0].Message, wantStates)
			}
		})
	}
}
