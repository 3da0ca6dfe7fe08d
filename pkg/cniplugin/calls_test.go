package cniplugin

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestCalls makes the calls of testdata/calls.txt, which says what comes of them.
func TestCalls(t *testing.T) {
	cwd, err := os.Getwd()
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.Succeed(t, errors.Join(err, syscall.Mkfifo(fifo, 0o600)))
	fill := func(text string) string {
		text = strings.NewReplacer("{cwd}", cwd, "{fifo}", fifo).Replace(text)
		return repeated.ReplaceAllStringFunc(text, func(s string) string {
			m := repeated.FindStringSubmatch(s)
			n, _ := strconv.Atoi(m[2])
			return strings.Repeat(m[1], n)
		})
	}
	for _, c := range cases.Read(t, "testdata/calls.txt")[1:] {
		t.Run(c.Name, func(t *testing.T) {
			r := &recorder{result: ipam.Result{Addresses: dualStack.Addresses}}
			p, stdout, stderr := plugin(r)
			args := addArgs(nil, "")
			verb, given, _ := strings.Cut(fill(c.Given[0]), " ")
			if args.Args = given; strings.HasPrefix(given, `"`) {
				args.Args, err = strconv.Unquote(given)
				must.Succeed(t, err)
			}
			fields := ""
			for _, line := range c.Given[1:] {
				switch key, value, _ := strings.Cut(fill(line), " "); key {
				case "id":
					args.ContainerID = value
				case "netns":
					args.Netns = value
				default:
					fields += fill(line)
				}
			}
			args.StdinData = stdinOf(fields)
			err := map[string]func(*skel.CmdArgs) error{"ADD": p.Add, "DEL": p.Del, "CHECK": p.Check, "GC": p.GC,
				"CONFIGURATION": checkConfiguration}[verb](args)
			if len(stdout.String()) > 0 && (verb != "ADD" || err != nil) {
				t.Errorf("it prints %q", stdout)
			}
			left := r.values()
			left["note"] = stderr.String()
			for _, line := range c.Want {
				key, want, _ := strings.Cut(fill(line), " ")
				got := left[key]
				delete(left, key)
				switch key {
				case "error":
					code, text, _ := strings.Cut(want, " ")
					if e := (*types.Error)(nil); !errors.As(err, &e) || fmt.Sprint(e.Code) != code ||
						!strings.Contains(e.Msg, text) || len(e.Msg) > 500 || len(r.calls) > 0 {
						t.Errorf("%v, calls %q; want code %s and %q", err, r.calls, code, text)
					}
					err = nil
				case "note":
					if !strings.Contains(got, want) || len(got) > 350 {
						t.Errorf("the note is %q, want %q in it", got, want)
					}
				default:
					check.Equal(t, got, want, key)
				}
			}
			isRequest := fmt.Sprint(r.calls) == "[Assign]" || fmt.Sprint(r.calls) == "[Verify]"
			if of := []string{r.req.ContainerID, r.req.IfName, r.req.NetnsPath}; isRequest != slices.Equal(of,
				[]string{args.ContainerID, args.IfName, args.Netns}) {
				t.Errorf("a request of %.20q", of)
			}
			for _, key := range []string{"called", "pool", "sets", "gateway"} {
				delete(left, key)
			}
			for key, got := range left {
				check.Equal(t, got, "", key)
			}
			must.Succeed(t, err)
		})
	}
}

// stdinOf returns a configuration that is given whole, or by its fields.
func stdinOf(fields string) []byte {
	if strings.HasPrefix(fields, "{") || strings.HasPrefix(fields, "[") {
		return []byte(fields)
	}
	return conf(cmp.Or(fields, `"ipam":{"subnet":"10.0.0.0/24"}`))
}

var repeated = regexp.MustCompile(`\{(.)\*(\d+)\}`)

// checkConfiguration is CheckConfiguration with the error that ADD would return.
func checkConfiguration(args *skel.CmdArgs) error {
	if err := CheckConfiguration(args.StdinData); err != nil {
		return coded(verbAdd, err)
	}
	return nil
}

// values returns what the service was called with, "" for what it did not get.
func (r *recorder) values() map[string]string {
	sets, valid, retention := slices.Concat(r.req.Sets, r.where.Sets), "", ""
	pool := cmp.Or(r.req.Pool, r.where.Pool, r.pool)
	if len(r.valid) > 0 {
		valid = fmt.Sprint(r.valid)
	}
	if r.req.Retention != (policy.Request{}) {
		retention = fmt.Sprintf("%+v", r.req.Retention)
	}
	options := fmt.Sprintf("%+v", r.req.Options)
	if r.req.ContainerID == "" || options == fmt.Sprintf("%+v", policy.Defaults()) {
		options = ""
	}
	scope := ""
	if r.where.CoolDown != 0 && r.where.CoolDown != policy.Defaults().CoolDown {
		scope = fmt.Sprint(r.where.CoolDown, " ", r.where.Caches)
	}
	out := map[string]string{
		"called": cmp.Or(strings.Join(r.calls, " "), "nothing"),
		"pool":   strings.TrimSpace(pool.DataDir + " " + pool.Network),
		"sets":   strings.Join(texts(sets), " "), "link": r.req.Link, "retention": retention, "valid": valid,
		"requested": strings.Join(texts(r.req.Requested), " "), "prev": strings.Join(texts(r.req.Prev), " "),
		"options": options, "scope": scope,
	}
	if p := r.req.Pod; p != (ipam.Pod{}) {
		out["pod"] = strings.TrimSuffix(strings.Join([]string{p.Namespace, p.Name, p.UID}, "/"), "/")
	}
	if len(sets) > 0 {
		out["gateway"] = sets[0][0].Gateway.String()
	}
	return out
}
