package lint

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	gotypes "go/types"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/differential"
	"github.com/leasehold-cni/leasehold/test/must"
)

var update = flag.Bool("update", false, "write docs/reference.md and docs/commands.md")

const generatedBy = "`go test ./test/lint -run %s -update` writes this file from the %s.\n"

// TestReference checks that docs/reference.md has what the code says. With -update it writes that
// file.
func TestReference(t *testing.T) {
	s := readSource(t)
	r := &reference{t: t}
	fmt.Fprintf(r, "# Reference\n\n"+generatedBy, "TestReference", "comments and constants of the code")
	fmt.Fprintf(r, "The flags are in [commands.md](commands.md), the forms of `-o json` in [json.md](json.md).\n")
	s.keys(r)
	s.configuration(r)
	s.events(r)
	s.metrics(r)
	r.section("Reasons of pins", "They are in the annotation `leasehold.dev/pin-reason` and in metrics.",
		"reason", "meaning")
	s.list(r, func(c namedConst) bool { return c.typ == "pinReason" })
	r.section("Reasons of retention", "Why a network of a node does or does not keep addresses: in the condition "+
		"`RetentionActive` of its NodeAddressPool, in events, and in `leasectl doctor`.", "reason", "meaning")
	s.list(r, func(c namedConst) bool { return strings.HasPrefix(c.block, "The reasons of the states of a network") })
	resources(t, r)
	s.exitCodes(r)
	differences(r)
	compare(t, "docs/reference.md", r.String())
}

// compare checks the content of a generated document. With -update it writes the document.
func compare(t *testing.T, name, want string) {
	t.Helper()
	path := filepath.Join("../..", name)
	if *update {
		must.Succeed(t, os.WriteFile(path, []byte(want), 0o644))
	}
	have, err := os.ReadFile(path)
	must.Succeed(t, err)
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("%s is out of date; run 'go test ./test/lint -run %s -update' (-have +want)\n%s", name, t.Name(), diff)
	}
}

// reference is the text of a document in Markdown.
type reference struct {
	strings.Builder
	t *testing.T
}

func (r *reference) section(heading, about string, columns ...string) {
	fmt.Fprintf(r, "\n## %s\n\n", heading)
	if about != "" {
		fmt.Fprintf(r, "%s\n\n", about)
	}
	if len(columns) > 0 {
		fmt.Fprintf(r, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	}
}

var escaped = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

// row writes a row of a table. The first cell is code, the last one a comment, which must not be
// empty.
func (r *reference) row(first string, cells ...string) {
	if cells[len(cells)-1] == "" {
		r.t.Errorf("%s has no comment", first)
	}
	fmt.Fprintf(r, "| `%s` |", first)
	for _, c := range cells {
		fmt.Fprintf(r, " %s |", escaped.Replace(c))
	}
	r.WriteString("\n")
}

// sourceFile is a parsed Go file.
type sourceFile struct {
	dir string // relative to the root
	*ast.File
}

type source []sourceFile

// readSource parses the Go files of the programs.
func readSource(t *testing.T) (s source) {
	for _, f := range goFiles(t) {
		top, _, _ := strings.Cut(f.name, "/")
		if !slices.Contains([]string{"pkg", "cmd", "daemonset"}, top) || strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		const mode = parser.ParseComments | parser.SkipObjectResolution
		parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.content, mode)
		must.Succeed(t, err)
		s = append(s, sourceFile{filepath.Dir(f.name), parsed})
	}
	return s
}

// namedConst is a constant with a literal value.
type namedConst struct {
	dir, name, typ, value string
	comment               string // of the constant itself, without its name
	block                 string // the comment of the block
}

// consts returns the constants in the order of the directories and files.
func (s source) consts() (out []namedConst) {
	for _, f := range s {
		for _, d := range f.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, spec := range decl.Specs {
				v := spec.(*ast.ValueSpec)
				if len(v.Values) != 1 || len(v.Names) != 1 {
					continue
				}
				c := namedConst{dir: f.dir, name: v.Names[0].Name, value: text(v.Values[0]), block: line(decl.Doc)}
				if id, ok := v.Type.(*ast.Ident); ok {
					c.typ = id.Name
				}
				c.comment = about(c.name, v.Doc, v.Comment)
				if !decl.Lparen.IsValid() {
					c.comment = about(c.name, decl.Doc, v.Comment)
				}
				out = append(out, c)
			}
		}
	}
	return out
}

// about returns the first comment that is not empty, as one line that begins with a capital letter
// and not with the name of what it is about.
func about(name string, comments ...*ast.CommentGroup) string {
	for _, c := range comments {
		s := line(c)
		if rest, ok := strings.CutPrefix(s, name); ok {
			s = strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(rest, " :"), "is "), "are ")
		}
		if s != "" {
			return sentence(s)
		}
	}
	return ""
}

// sentence returns a text that begins with a capital letter. A single sentence has no full stop.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	if !strings.Contains(s, ". ") {
		s = strings.TrimSuffix(s, ".")
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func line(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

// text returns the value of an expression of literals, "" if it is something else.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, _ := strconv.Unquote(e.Value)
			return s
		}
		return e.Value
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	}
	return ""
}

// list writes the constants that match.
func (s source) list(r *reference, matches func(namedConst) bool) {
	for _, c := range s.consts() {
		if matches(c) {
			r.row(c.value, c.comment)
		}
	}
}

// keys writes the annotations and labels.
func (s source) keys(r *reference) {
	key := regexp.MustCompile(`^(leasehold\.dev|io\.kubernetes\.cri|kruise\.io)/`)
	r.section("Annotations and labels", "", "key", "kind", "meaning")
	all := s.consts()
	slices.SortStableFunc(all, func(a, b namedConst) int { return strings.Compare(a.value, b.value) })
	for _, c := range all {
		if !key.MatchString(c.value) {
			continue
		}
		kind := "annotation"
		if strings.HasPrefix(strings.ToLower(c.name), "label") {
			kind = "label"
		}
		r.row(c.value, kind, c.comment)
	}
}

// configuration writes the keys of the ipam section and of the limits.
func (s source) configuration(r *reference) {
	r.section("Configuration: the ipam section", "Keys without a default are host-local's own.",
		"key", "default", "meaning")
	defaults := reflect.ValueOf(policy.Defaults())
	for _, structure := range []string{"ipamRange", "ipamSection", "RawConfig"} {
		for _, f := range s.fields(structure) {
			value := ""
			if v := defaults.FieldByName(f.name); v.IsValid() {
				value = "none"
				if _, isName := v.Interface().(fmt.Stringer); !v.IsZero() || isName && v.Kind() == reflect.Int {
					value = "`" + fmt.Sprint(v) + "`"
				}
			}
			r.row(f.json, value, f.comment)
		}
	}
	r.section("Configuration: limits of namespaces", "Keys of the ConfigMap leasehold-limits, for every namespace, or "+
		"after `<namespace>.` for one.", "key", "meaning")
	s.list(r, func(c namedConst) bool { return c.block == "The keys of Limits." })
}

type jsonField struct{ name, json, comment string }

// fields returns the fields of a struct that have a name in JSON.
func (s source) fields(structure string) (out []jsonField) {
	for _, f := range s {
		ast.Inspect(f.File, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != structure {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				name := field.Names[0].Name
				tag := reflect.StructTag(text(field.Tag)).Get("json")
				out = append(out, jsonField{name, tag, about(name, field.Doc, field.Comment)})
			}
			return false
		})
	}
	return out
}

// events writes the reasons of Events, and the events of the journal.
func (s source) events(r *reference) {
	r.section("Events", "", "reason", "by", "meaning")
	for _, c := range s.consts() {
		if regexp.MustCompile(`(?i)^(the )?reasons of the .*Events`).MatchString(c.block) {
			by := "agent"
			if strings.HasPrefix(c.dir, "pkg/manager") {
				by = "manager, " + filepath.Base(c.dir)
			}
			r.row(c.value, by, c.comment)
		}
	}
	r.section("Events of the journal", "`leasectl history` and `kubectl leasehold history` print them.",
		"event", "meaning")
	s.list(r, func(c namedConst) bool { return c.dir == "pkg/store" && c.typ == "Event" })
}

// metrics writes the metrics.
func (s source) metrics(r *reference) {
	name := regexp.MustCompile(`^leasehold_[a-z_]+$`)
	for _, program := range []string{"agent", "manager"} {
		heading := "Metrics of the " + program
		r.section(heading, "", "metric", "type", "meaning")
		found := map[string]metric{}
		for _, f := range s {
			isShared := f.dir == "pkg/kube" // by both programs
			if !strings.HasPrefix(f.dir+"/", "pkg/"+program+"/") && f.dir != "cmd/leasehold-"+program && !isShared {
				continue
			}
			ast.Inspect(f.File, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if m := metricOf(call); name.MatchString(m.name) {
						found[m.name] = m // of calls in each other the innermost is the last
					}
				}
				return true
			})
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			m := found[name]
			if len(m.labels) > 0 {
				name += "{" + strings.Join(m.labels, ",") + "}"
			}
			r.row(name, m.kind, m.help)
		}
	}
}

type metric struct {
	name, kind, help string
	labels           []string
}

// metricOf returns the metric that a call makes: of the texts in its arguments the first is the
// name, the second the help, and the others are labels.
func metricOf(call *ast.CallExpr) (m metric) {
	strs := []string{}
	ast.Inspect(call, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && text(e) != "" && !regexp.MustCompile(`^[.0-9]+$`).MatchString(text(e)) {
			strs = append(strs, text(e))
			return false
		}
		return true
	})
	if len(strs) < 2 {
		return m
	}
	m = metric{name: strs[0], kind: "gauge", help: strs[1], labels: strs[2:]}
	for _, kind := range []string{"counter", "histogram"} {
		if strings.Contains(strings.ToLower(gotypes.ExprString(call.Fun)), kind) {
			m.kind = kind
		}
	}
	return m
}

// schema is a part of the schema of a CRD.
type schema struct {
	Type, Description string
	Properties        map[string]schema
	Items             *schema
	Values            *schema `json:"additionalProperties"`
	Enum              []string
}

// resources writes the fields of the CRDs.
func resources(t *testing.T, r *reference) {
	for _, f := range tracked(t, "daemonset/base/crds/*.yaml") {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		must.Succeed(t, yaml.Unmarshal(f.content, &crd))
		for _, v := range crd.Spec.Versions {
			r.section(fmt.Sprintf("%s (%s/%s)", crd.Spec.Names.Kind, crd.Spec.Group, v.Name),
				strings.Join(strings.Fields(v.Schema.OpenAPIV3Schema.Description), " "), "field", "type", "meaning")
			for _, part := range []string{"spec", "status"} {
				v.Schema.OpenAPIV3Schema.Properties[part].fields(r, part)
			}
		}
	}
}

// fields writes the fields of a schema below path. The conditions are those of every Kubernetes
// object.
func (s schema) fields(r *reference, path string) {
	for s.Items != nil {
		s, path = *s.Items, path+"[]"
	}
	if s.Values != nil {
		s, path = *s.Values, path+".*"
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		kind := p.Type
		if p.Items != nil {
			kind = "array of " + p.Items.Type
		}
		if len(p.Enum) > 0 {
			kind = strings.Join(p.Enum, " or ")
		}
		meaning := strings.Join(strings.Fields(p.Description), " ")
		if first, _, _ := strings.Cut(meaning, " "); strings.EqualFold(strings.TrimSuffix(first, ":"), name) {
			meaning = strings.TrimLeft(strings.TrimPrefix(meaning, strings.TrimSuffix(first, ":")), " :")
			meaning = strings.TrimPrefix(strings.TrimPrefix(meaning, "is "), "are ")
		}
		r.row(path+"."+name, kind, sentence(meaning))
		if name != "conditions" {
			p.fields(r, path+"."+name)
		}
	}
}

// exitCodes writes the exit codes of the programs, and the CNI error codes of the plugin.
func (s source) exitCodes(r *reference) {
	r.section("Exit codes", "0 is success.", "program", "code", "meaning")
	for _, c := range s.consts() {
		if strings.HasPrefix(strings.ToLower(c.name), "exit") && c.value != "0" {
			programs := map[string][]string{"pkg/cli": {"leasectl"},
				"pkg/daemon": {"leasehold-agent", "leasehold-manager"}}
			for _, program := range programs[c.dir] {
				r.row(program, c.value, c.comment)
			}
		}
	}
	r.section("CNI error codes", "STATUS has the code 50 for each error.", "code", "error", "what to do")
	for _, f := range s {
		if f.dir != "pkg/cniplugin" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || v.Names[0].Name != "translations" {
				return true
			}
			for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
				parts := e.(*ast.CompositeLit).Elts
				r.row(s.code(parts[1]), s.errorText(f.dir, parts[0]), text(parts[2]))
			}
			return false
		})
	}
}

// differences writes in which calls the plugin's reply may differ from host-local's.
func differences(r *reference) {
	r.section("Differences from host-local", "To all other calls the plugin replies as host-local does, with the same "+
		"addresses on a node that was never used: `TestCalls` (test/differential) compares both programs, and reads "+
		"this table.", "call", "host-local", "leasehold", "why")
	for _, d := range differential.Differences {
		fmt.Fprintf(r, "| %s | %s | %s | %s |\n", d.Call, d.HostLocal, d.Leasehold, d.Reason)
	}
}

// codes are those of the CNI library that the plugin uses.
var codes = map[string]uint{
	"ErrInvalidEnvironmentVariables": types.ErrInvalidEnvironmentVariables, "ErrIOFailure": types.ErrIOFailure,
	"ErrDecodingFailure": types.ErrDecodingFailure, "ErrInvalidNetworkConfig": types.ErrInvalidNetworkConfig,
	"ErrTryAgainLater": types.ErrTryAgainLater,
}

// code returns the number of a CNI error code.
func (s source) code(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		return fmt.Sprint(codes[sel.Sel.Name])
	}
	for _, c := range s.consts() {
		if c.name == e.(*ast.Ident).Name {
			return c.value
		}
	}
	return ""
}

// errorText returns the text of an error variable, of a package in dir or of another one.
func (s source) errorText(dir string, e ast.Expr) (out string) {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name, dir = e.Sel.Name, "pkg/"+e.X.(*ast.Ident).Name
	}
	for _, f := range s {
		if f.dir != dir {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if ok && len(v.Values) == 1 && v.Names[0].Name == name {
				out = text(v.Values[0].(*ast.CallExpr).Args[0])
			}
			return out == ""
		})
	}
	return out
}

// TestCommands checks that docs/commands.md has the help of each command. With -update it writes
// that file.
func TestCommands(t *testing.T) {
	dir, err := filepath.Abs("../../.cache/commands") // which links only what has changed
	must.Succeed(t, err)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "./cmd/...")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	link := filepath.Join(dir, "kubectl-leasehold")
	if err := os.Symlink("leasectl", link); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	r := &reference{t: t}
	fmt.Fprintf(r, "# Commands and flags\n\n"+generatedBy, "TestCommands", "help of the programs")
	for _, program := range [][]string{{"leasectl"}, {"kubectl-leasehold"}, {"leasehold-agent"},
		{"leasehold-manager"}} {
		helpOf(t, r, dir, program)
	}
	compare(t, "docs/commands.md", r.String())
}

// helpOf writes the help of a command and of its subcommands.
func helpOf(t *testing.T, r *reference, dir string, command []string) {
	cmd := exec.Command(filepath.Join(dir, command[0]), append(command[1:], "--help")...)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	r.section(strings.Replace(strings.Join(command, " "), "kubectl-", "kubectl ", 1), "")
	// The flags of the program are in its own section.
	help := string(out)
	if before, after, found := strings.Cut(help, "\nGlobal Flags:\n"); found {
		_, after, _ = strings.Cut(after, "\n\n")
		help = strings.TrimRight(before+"\n"+after, "\n") + "\n"
	}
	for l := range strings.Lines(help) {
		r.WriteString(strings.TrimRight("    "+l, " \n") + "\n")
	}
	_, list, _ := strings.Cut(string(out), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for l := range strings.Lines(list) {
		if name := strings.Fields(l)[0]; name != "completion" && name != "help" {
			helpOf(t, r, dir, append(slices.Clone(command), name))
		}
	}
}
