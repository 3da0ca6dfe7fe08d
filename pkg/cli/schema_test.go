package cli

import (
	"encoding"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/install"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var update = flag.Bool("update", false, "write docs/json.md")

// schemas are what each verb prints with -o json.
var schemas = []struct {
	verbs, about string
	value        any
}{
	{"list", "Leases of a node. until is null while the address is bound, and may be `forever`. " +
		"hold: held for a window, and not in cool-down.", []Row{}},
	{"history", "Journal entries, oldest first. The first is an event JournalBegins if there were earlier ones.",
		[]store.Entry{}},
	{"pools", "Range sets. size and free are null before the first ADD, and at most 9223372036854775807.", []Pool{}},
	{"release", "Leases that were selected. error is empty for those that were released.", []Released{}},
	{"gc", "What was done, or with --dry-run would be done.", []Action{}},
	{"check", "Problems of the store.", Checked{}},
	{"recover", "Networks that were imported, with their numbers of leases.", []Imported{}},
	{"recover --dry-run", "Leases that would be made.", []Candidate{}},
	{"doctor, kubectl leasehold doctor", "repair has commands of a shell, in their order, which can do no harm. " +
		"If it is empty, decide says what there is to decide.", Report{}},
	{"uninstall --dry-run", "What would be done on the node. held is the number of addresses that are lost.",
		install.Plan{}},
	{"kubectl leasehold history", "Journal entries of all nodes, by time. Each node may have an event JournalBegins.",
		[]NodeEntry{}},
}

// TestSchemas checks that docs/json.md says what each verb prints. With -update it writes that
// file.
func TestSchemas(t *testing.T) {
	var want strings.Builder
	want.WriteString("# What leasectl prints with -o json\n\nFields may be added, and are not removed or renamed. " +
		"Times are RFC 3339 in UTC.\n`kubectl leasehold release` prints IPReservations, `kubectl leasehold reserve` " +
		"addresses of the status of an\nAddressRequest. `go test ./pkg/cli -run TestSchemas -update` writes this " +
		"file.\n")
	for _, s := range schemas {
		fmt.Fprintf(&want, "\n## %s\n\n%s\n\n    %s\n", s.verbs, s.about, strings.ReplaceAll(
			schema(reflect.TypeOf(s.value), ""), "\n", "\n    "))
	}
	const path = "../../docs/json.md"
	if *update {
		must.Succeed(t, os.WriteFile(path, []byte(want.String()), 0o644))
	}
	check.Equal(t, string(must.Read(t, path)), want.String(), path)
}

// schema returns the form of a type's JSON.
func schema(t reflect.Type, indent string) string {
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return "string"
	}
	switch t.Kind() {
	case reflect.Slice:
		return "[" + schema(t.Elem(), indent) + ", ...]"
	case reflect.Pointer:
		return schema(t.Elem(), indent) + " or null"
	case reflect.Struct:
		return "{\n" + strings.Join(fields(t, indent+"  "), ",\n") + "\n" + indent + "}"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "string"
	}
	return "number"
}

func fields(t reflect.Type, indent string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, fields(f.Type, indent)...)
			continue
		}
		if name := f.Tag.Get("json"); f.IsExported() && name != "-" {
			out = append(out, fmt.Sprintf("%s%q: %s", indent, name, schema(f.Type, indent)))
		}
	}
	return out
}
