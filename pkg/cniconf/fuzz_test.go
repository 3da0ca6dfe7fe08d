package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/test/check"
)

// called is a plugin that a runtime calls: what it gets on standard input, and the type of the IPAM
// plugin that it then calls, "" if it calls none.
type called struct {
	kind, ipam string
	stdin      any
}

// readers returns the plugins that a runtime calls for a configuration, by the code of libcni and
// as the plugins of containernetworking, flannel and Multus decode what libcni passes to them.
func readers(name string, content []byte) ([]called, error) {
	list, err := parse(name, content)
	if err != nil {
		return nil, err
	}
	var all []called
	for _, p := range list.Plugins {
		passed, err := libcni.InjectConf(p, map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
		if err != nil {
			return nil, err
		}
		all = append(all, readAs(passed)...)
	}
	return all, nil
}

// parse parses a configuration with libcni, as runtimes do. A file whose name does not end in
// .conflist has a single plugin, and parse returns a list of one.
func parse(path string, content []byte) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(path) == ".conflist" {
		return libcni.NetworkConfFromBytes(content)
	}
	single, err := libcni.NetworkPluginConfFromBytes(content)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 containerd and CRI-O load such files with it.
	return libcni.ConfListFromConf(single)
}

func readAs(p *libcni.PluginConfig) []called {
	c := called{kind: p.Network.Type, ipam: p.Network.IPAM.Type}
	if err := json.Unmarshal(p.Bytes, &c.stdin); err != nil {
		panic(err) // libcni has decoded it
	}
	all := []called{}
	switch {
	case c.kind == "flannel":
		var flannel struct {
			types.PluginConf
			IPAM map[string]any `json:"ipam"`
		}
		_ = json.Unmarshal(p.Bytes, &flannel)
		kind, found := flannel.IPAM["type"]
		if c.ipam, _ = kind.(string); !found {
			c.ipam = "host-local"
		}
	case isMultus(c.kind):
		c.ipam = ""
		var multus struct {
			Delegates []map[string]any `json:"delegates"`
		}
		if json.Unmarshal(p.Bytes, &multus) != nil {
			break
		}
		for _, d := range multus.Delegates {
			content, _ := json.Marshal(d) // it was decoded from JSON
			if single, err := libcni.NetworkPluginConfFromBytes(content); err == nil {
				all = append(all, readAs(single)...)
			} else if list, err := libcni.NetworkConfFromBytes(content); err == nil {
				for _, inner := range list.Plugins {
					all = append(all, readAs(inner)...)
				}
			}
		}
	}
	return append([]called{c}, all...)
}

// differences adds the paths and the values that differ in two JSON values, in the form
// "/path: before -> after".
func differences(path string, before, after any, all *[]string) {
	a, isObject := before.(map[string]any)
	b, areObjects := after.(map[string]any)
	list, isList := before.([]any)
	other, areLists := after.([]any)
	switch {
	case isObject && areObjects:
		for key := range a {
			differences(path+"/"+key, a[key], b[key], all)
		}
		for key := range b {
			if _, found := a[key]; !found {
				differences(path+"/"+key, nil, b[key], all)
			}
		}
	case isList && areLists && len(list) == len(other):
		for i := range list {
			differences(path+"/*", list[i], other[i], all)
		}
	case !reflect.DeepEqual(before, after):
		text, _ := json.Marshal([]any{before, after})
		*all = append(*all, strings.ReplaceAll(strings.ToLower(path), "\u017f", "s")+": "+string(text))
	}
}

// The differences that install makes.
var (
	named = []string{`/ipam/type: ["host-local","leasehold"]`, `/ipam: [null,{"type":"leasehold"}]`,
		`/ipam/type: [null,"leasehold"]`}
	annotated = []string{`/capabilities: [null,{"io.kubernetes.cri.pod-annotations":true}]`,
		`/capabilities/io.kubernetes.cri.pod-annotations: [null,true]`}
)

// checkEdit fails the test unless the plugins that a runtime calls for a configuration after an
// edit get what they got before, but for the differences that are allowed.
func checkEdit(t *testing.T, name string, before []called, after []byte, ipam func(string) string, allowed []string) {
	t.Helper()
	now, err := readers(name, after)
	if err != nil || len(now) != len(before) {
		t.Fatalf("%d plugins, %v; want %d\n%s", len(now), err, len(before), after)
	}
	for i, c := range before {
		if now[i].kind != c.kind || now[i].ipam != ipam(c.ipam) {
			t.Fatalf("%s calls %s and then %s calls %s\n%s", c.kind, c.ipam, now[i].kind, now[i].ipam, after)
		}
		var found []string
		differences("", c.stdin, now[i].stdin, &found)
		for _, d := range found {
			if !slices.ContainsFunc(allowed, func(end string) bool { return strings.HasSuffix(d, end) }) {
				t.Fatalf("%s gets another configuration: %s\n%s", c.kind, d, after)
			}
		}
	}
}

// FuzzEdit checks that WithLeasehold and WithAnnotations change what libcni and the plugins read as
// they say, and that WithoutLeasehold gives the bytes back. Otherwise they return an error that
// says what to write.
func FuzzEdit(f *testing.F) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		f.Add(configuration(r, seed%4 > 0), seed%4 > 0)
	}
	f.Add(stockList, true)
	f.Fuzz(func(t *testing.T, text string, isList bool) {
		name, content := "1.conf", []byte(text)
		if isList {
			name = "1.conflist"
		}
		before, err := readers(name, content)
		if err != nil || len(before) == 0 {
			return
		}
		isOurs := func(c called) bool {
			return c.kind == Leasehold || c.ipam == Leasehold || strings.Contains(fmt.Sprint(c.stdin), annotations)
		}
		isUsed := slices.ContainsFunc(before, isOurs)
		undo := func(changed []byte) {
			if string(changed) == text {
				return // it named leasehold before, perhaps so that only a person can undo it
			}
			if undone, err := WithoutLeasehold(name, changed); err != nil || !isUsed && string(undone) != text {
				t.Fatalf("%v, undone\n%s\nwant\n%s", err, undone, text)
			}
		}
		same := func(ipam string) string { return ipam }
		changed, err := WithLeasehold(name, content)
		switch {
		case err == nil:
			checkEdit(t, name, before, changed, func(ipam string) string {
				return strings.Replace(ipam, HostLocal, Leasehold, 1)
			}, named)
			undo(changed)
		case !errors.Is(err, ErrNothingToChange) && !strings.Contains(err.Error(), "write ") &&
			!strings.Contains(err.Error(), "may call no other"):
			t.Fatalf("%v\n%s", err, text)
		}
		if changed, err := WithAnnotations(name, content); err == nil {
			checkEdit(t, name, before, changed, same, annotated)
			if again, err := WithLeasehold(name, changed); err == nil && !bytes.Equal(again, changed) {
				undo(again)
			}
		} else if !strings.Contains(err.Error(), "Multus passes no") {
			check.Contains(t, err.Error(), "write ", text)
		}
		if without, err := WithoutLeasehold(name, content); err == nil && !bytes.Equal(without, content) {
			after, err := readers(name, without)
			if err != nil || slices.ContainsFunc(after, func(c called) bool { return c.ipam == Leasehold }) {
				t.Fatalf("%v, still named in\n%s", err, without)
			}
		} else if err == nil && slices.ContainsFunc(before, func(c called) bool { return c.ipam == Leasehold }) {
			t.Fatalf("leasehold stays named in\n%s", text)
		}
	})
}

// configuration returns a random configuration: keys in any case, repeated and missing ones, values
// of any type, white space anywhere.
func configuration(r *rand.Rand, isList bool) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	key := func(name string) string {
		switch r.IntN(6) {
		case 0:
			return strings.ToUpper(name)
		case 1:
			return strings.ToUpper(name[:1]) + name[1:]
		case 2:
			return strings.Replace(name, "s", "\u017f", 1) // which folds to s
		}
		return name
	}
	object := func(members ...string) string {
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + pick("", " ", "\n\t") + strings.Join(members, pick(",", " , ", ",\n  ")) + pick("", "\n") + "}"
	}
	member := func(name, value string) string { return `"` + key(name) + `"` + pick(":", ": ", " : ") + value }
	ipam := func() string {
		var members []string
		for range r.IntN(3) {
			kind := pick(`"host-local"`, `"host-local"`, `"leasehold"`, `"dhcp"`, `null`)
			members = append(members, member("type", kind))
		}
		members = append(members, member("subnet", `"10.0.0.0/24"`))
		return pick(object(members...), object(members...), object(members...), `{}`, `null`)
	}
	entry := func() string {
		members := []string{`"type": ` + pick(`"flannel"`, `"bridge"`, `"ptp"`, `"portmap"`, `"leasehold"`, `"calico"`)}
		for range r.IntN(3) {
			members = append(members, member("ipam", ipam()))
		}
		for range r.IntN(2) {
			of := pick(`{}`, `{"ips": true}`, `null`, `{"io.kubernetes.cri.pod-annotations": true}`,
				`{"io.kubernetes.cri.pod-annotations":false, "ips":true}`)
			members = append(members, member("capabilities", of))
		}
		return object(members...)
	}
	head := []string{`"name": "n"`, `"cniVersion": "1.0.0"`}
	if !isList && r.IntN(2) == 0 {
		return strings.Replace(entry(), "{", `{"name": "n", "cniVersion": "1.0.0",`, 1)
	}
	entries := []string{}
	for range 1 + r.IntN(3) {
		entries = append(entries, entry())
	}
	plugins := "[" + strings.Join(entries, pick(",", ", ", " ,\n")) + "]"
	if !isList {
		return object(append(head, `"type": "multus"`, member("delegates", "["+
			object(`"name": "d"`, member("plugins", plugins))+"]"))...)
	}
	members := append(head, `"plugins": `+plugins)
	if r.IntN(4) == 0 {
		members = append(members, member("plugins", "["+entry()+"]"))
	}
	return object(members...)
}
