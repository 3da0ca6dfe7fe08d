package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A fault is one line of a package, changed.
type fault struct {
	pkg, file     string // in the module
	line          int
	function      string // "lines", "(*call).look"
	kind          string
	before, after string // the line

	span        // what is replaced
	by   string // and by what
	in   function
	id   string // of a fault that is planted
}

// function is a function that can be copied: its body, the header of a copy, and a statement that
// calls the copy and returns. NAME is the name of the copy.
type function struct {
	body         span
	header, call string
}

// span is a part of a file.
type span struct{ from, to int }

func (f *fault) String() string {
	return fmt.Sprintf("%s:%d %s: %s", f.file, f.line, f.function, f.kind)
}

// pkgSites is a package with the places where faults may be planted.
type pkgSites struct {
	target
	fset    *token.FileSet
	files   map[string]*ast.File
	sources map[string][]byte
	imports types.Importer
	sites   []*fault

	functions []string
}

// load reads the packages with their types.
func load(targets []target, known []equivalent) ([]*pkgSites, error) {
	var names []string
	for _, t := range targets {
		names = append(names, "./"+t.dir)
	}
	goFiles, exports, err := compile(names...)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var packs []*pkgSites
	for _, t := range targets {
		p, err := find(t, goFiles[t.dir], fset, exports, known)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.dir, err)
		}
		packs = append(packs, p)
	}
	return packs, nil
}

// compile returns the files of packages by their directories, and an importer of the export data of
// them and their imports.
func compile(packages ...string) (goFiles map[string][]string, exports types.Importer, err error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles"},
		packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, nil, err
	}
	files, goFiles := map[string]string{}, map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, nil, err
		}
		files[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(root, p.Dir); err == nil {
			goFiles[dir] = p.GoFiles
		}
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
	return goFiles, importer.ForCompiler(token.NewFileSet(), "gc", open), nil
}

// find parses a package and lists the places for faults.
func find(in target, names []string, fset *token.FileSet, imports types.Importer,
	known []equivalent) (*pkgSites, error) {
	p := &pkgSites{
		target: in, fset: fset, files: map[string]*ast.File{}, sources: map[string][]byte{}, imports: imports,
	}
	for _, name := range names {
		file := filepath.Join(p.dir, name)
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if p.files[file], err = parser.ParseFile(p.fset, file, source, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		p.sources[file] = source
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	if err := p.check(p.files, info); err != nil {
		return nil, err
	}
	for _, file := range slices.Sorted(maps.Keys(p.files)) {
		s := &finder{fset: p.fset, info: info, pkg: p.dir, file: file, source: p.sources[file]}
		for _, decl := range p.files[file].Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				s.function = nameOf(fn)
				p.functions = append(p.functions, s.function)
				if s.function != "init" && !strings.HasSuffix(s.function, ".String") &&
					!strings.HasSuffix(s.function, ".Error") &&
					!composesMessages(known, p.dir, s.function) {
					s.in = s.functionOf(fn)
					s.seek(fn.Body)
				}
			}
		}
		p.sites = append(p.sites, s.found...)
	}
	if len(p.sites) == 0 {
		return nil, fmt.Errorf("no place for a fault")
	}
	return p, nil
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// check reports whether the files compile.
func (p *pkgSites) check(files map[string]*ast.File, info *types.Info) error {
	var list []*ast.File
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, files[name])
	}
	config := types.Config{Importer: p.imports}
	_, err := config.Check(p.dir, p.fset, list, info)
	return err
}

// draw returns a random fault that compiles, nil if there is none left. It draws the kind first,
// because there are many more comparisons than syncs, and then a place. A line has one fault at
// most.
func (p *pkgSites) draw(rng *rand.Rand) *fault {
	for len(p.sites) > 0 {
		kinds := map[string][]*fault{}
		for _, f := range p.sites {
			kinds[f.kind] = append(kinds[f.kind], f)
		}
		names := slices.Sorted(maps.Keys(kinds))
		of := kinds[names[rng.IntN(len(names))]]
		f := of[rng.IntN(len(of))]
		ok := p.compiles(f)
		p.sites = slices.DeleteFunc(p.sites, func(o *fault) bool {
			return o == f || ok && o.file == f.file && o.line == f.line
		})
		if ok {
			return f
		}
	}
	return nil
}

// drawAll draws n faults, or all that there are. The result depends only on the rng and the code.
func (p *pkgSites) drawAll(rng *rand.Rand, n int) (out []*fault) {
	for range n {
		if f := p.draw(rng); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// compiles sets the lines before and after the fault, and reports whether it compiles.
func (p *pkgSites) compiles(f *fault) bool {
	source := p.sources[f.file]
	changed := slices.Concat(source[:f.from], []byte(f.by), source[f.to:])
	f.before, f.after = lineAt(source, f.from), lineAt(changed, f.from)
	parsed, err := parser.ParseFile(p.fset, f.file, changed, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := maps.Clone(p.files)
	files[f.file] = parsed
	return p.check(files, nil) == nil
}

func lineAt(source []byte, at int) string {
	from, to := bytes.LastIndexByte(source[:at], '\n')+1, len(source)
	if n := bytes.IndexByte(source[at:], '\n'); n >= 0 {
		to = at + n
	}
	return strings.TrimSpace(string(source[from:to]))
}

// finder finds the places for faults in a file.
type finder struct {
	fset     *token.FileSet
	info     *types.Info
	pkg      string
	file     string
	source   []byte
	function string
	in       function
	path     []ast.Node // from the function's body to the node
	found    []*fault
}

func (s *finder) functionOf(fn *ast.FuncDecl) function {
	in := function{body: span{s.offset(fn.Body.Pos()), s.offset(fn.Body.End())}, header: "func ", call: "NAME"}
	if receiver, names := s.named(fn.Recv); names != nil {
		in.header, in.call = "func ("+receiver+") ", names[0]+".NAME"
	}
	in.header += "NAME"
	if types, names := s.named(fn.Type.TypeParams); names != nil {
		in.header, in.call = in.header+"["+types+"]", in.call+"["+strings.Join(names, ", ")+"]"
	}
	params, names := s.named(fn.Type.Params)
	in.header, in.call = in.header+"("+params+") ", in.call+"("+strings.Join(names, ", ")+")"
	if fn.Type.Results == nil {
		in.call += "; return"
		return in
	}
	in.header, in.call = in.header+s.text(fn.Type.Results), "return "+in.call
	return in
}

// named returns those elements of a list that have a name, and the names as arguments of a call.
func (s *finder) named(list *ast.FieldList) (elements string, names []string) {
	if list == nil {
		return "", nil
	}
	var texts []string
	for _, f := range list.List {
		for _, name := range f.Names {
			if name.Name == "_" {
				continue
			}
			texts, names = append(texts, name.Name+" "+s.text(f.Type)), append(names, name.Name)
			if _, ok := f.Type.(*ast.Ellipsis); ok {
				names[len(names)-1] += "..."
			}
		}
	}
	return strings.Join(texts, ", "), names
}

func (s *finder) seek(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil {
			s.path = s.path[:len(s.path)-1]
			return true
		}
		if s.isMessage(n) || len(s.path) > 0 && s.decidesOnMessages(s.path[len(s.path)-1], n) {
			return false
		}
		s.path = append(s.path, n)
		s.visit(n)
		return true
	})
}

// parent returns the parent of the current node.
func (s *finder) parent() ast.Node {
	if len(s.path) < 2 {
		return nil
	}
	return s.path[len(s.path)-2]
}

func (s *finder) text(n ast.Node) string {
	return string(s.source[s.offset(n.Pos()):s.offset(n.End())])
}

func (s *finder) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// add adds a fault that replaces a part of one line.
func (s *finder) add(kind string, from, to token.Pos, by string) {
	a, b := s.fset.Position(from), s.fset.Position(to)
	if a.Line != b.Line {
		return
	}
	s.found = append(s.found, &fault{
		pkg: s.pkg, file: s.file, line: a.Line, function: s.function, kind: kind,
		span: span{a.Offset, b.Offset}, by: by, in: s.in,
	})
}

var (
	negated = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: ">=", token.GTR: "<=",
		token.LEQ: ">", token.GEQ: "<"}
	boundary = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	syncs    = []string{"Sync", "syncDir", "Fsync", "Fdatasync", "Syncfs"}
	// alike are calls whose order of arguments makes no difference. That of errors.Is is checked by
	// make lint (SA1032).
	alike = []string{"append", "errors.Is", "errors.As", "make", "min", "max", "errors.Join", "bytes.Equal",
		"slices.Equal", "reflect.DeepEqual", ".DeepEqual", "maps.Equal", "sameFile", "os.SameFile", "informer.Any",
		"add", "sum", "sumKnown", "equal", "strings.EqualFold", ".MustRegister", "r.MustRegister"}
)

const (
	comparison   = "comparison"
	offByOne     = "boundary"
	negation     = "negated condition"
	condition    = "part of a condition"
	droppedCall  = "dropped call"
	skippedSync  = "skipped sync"
	swapped      = "swapped arguments"
	forgotten    = "missing field"
	ignoredError = "ignored error"
	zeroReturned = "zero returned"
)

func (s *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		s.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			s.add(negation, n.Pos(), n.X.Pos(), "")
		}
	case *ast.IfStmt:
		switch n.Cond.(type) {
		case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr:
			s.add(negation, n.Cond.Pos(), n.Cond.Pos(), "!")
		}
	case *ast.BasicLit:
		s.literal(n)
	case *ast.ExprStmt:
		s.add(cmp.Or(syncKind(n.X), droppedCall), n.Pos(), n.End(), "")
	case *ast.DeferStmt, *ast.GoStmt:
		s.add(droppedCall, n.Pos(), n.End(), "")
	case *ast.CallExpr:
		s.call(n)
	case *ast.CompositeLit:
		s.composite(n)
	case *ast.AssignStmt:
		s.assignment(n)
	case *ast.ReturnStmt:
		s.returns(n)
	}
}

func (s *finder) binary(n *ast.BinaryExpr) {
	switch {
	case s.isErrorNil(n):
		if in, ok := s.parent().(*ast.IfStmt); ok && in.Cond == n {
			if n.Op == token.NEQ {
				s.add(ignoredError, n.End(), n.End(), " && false")
			} else {
				s.add(ignoredError, n.End(), n.End(), " || true")
			}
		}
	case negated[n.Op] != "":
		s.add(comparison, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), negated[n.Op])
		if by := boundary[n.Op]; by != "" {
			s.add(offByOne, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), by)
		}
	case n.Op == token.LAND || n.Op == token.LOR:
		other := map[token.Token]string{token.LAND: "||", token.LOR: "&&"}[n.Op]
		s.add(condition, n.OpPos, n.OpPos+2, other)
		s.add(condition, n.X.Pos(), n.Y.Pos(), "") // without the left part
		s.add(condition, n.X.End(), n.Y.End(), "") // without the right one
	}
}

// isErrorNil reports whether an expression compares an error with nil.
func (s *finder) isErrorNil(n *ast.BinaryExpr) bool {
	return (n.Op == token.EQL || n.Op == token.NEQ) && s.info.Types[n.Y].IsNil() && isError(s.info.Types[n.X].Type)
}

func isError(t types.Type) bool {
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}

// literal adds faults of numbers that are limits, not of those that are multiplied, such as times.
func (s *finder) literal(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	switch in := s.parent().(type) {
	case *ast.BinaryExpr:
		if in.Op != token.ADD && in.Op != token.SUB && negated[in.Op] == "" || isDuration(s.info.Types[in.X].Type) {
			return // a nanosecond more or less
		}
		if of, ok := in.X.(*ast.CallExpr); (in.Op == token.EQL || in.Op == token.NEQ) &&
			!(ok && nameOfCall(of) == "len") {
			return // whether it is another value than this one
		}
	case *ast.IndexExpr, *ast.SliceExpr:
	default:
		return
	}
	s.add(offByOne, n.Pos(), n.End(), n.Value+"+1")
}

// isDuration reports whether a type is a number of nanoseconds.
func isDuration(t types.Type) bool {
	return t != nil && (t.String() == "time.Duration" || strings.HasSuffix(t.String(), "/lease.Window"))
}

// syncKind returns the kind of the fault of a dropped call: a sync or another call.
func syncKind(x ast.Expr) string {
	if call, ok := x.(*ast.CallExpr); ok {
		name := nameOfCall(call)
		if slices.Contains(syncs, name[strings.LastIndexByte(name, '.')+1:]) {
			return skippedSync
		}
	}
	return ""
}

func (s *finder) call(n *ast.CallExpr) {
	if s.info.Types[n.Fun].IsType() {
		return // a conversion
	}
	_, alone := s.parent().(*ast.ExprStmt)
	_, deferred := s.parent().(*ast.DeferStmt)
	makes := strings.HasPrefix(nameOfCall(n), "errors.") || nameOfCall(n) == "ctx.Err"
	if isError(s.info.Types[n].Type) && !alone && !deferred && !makes {
		s.add(cmp.Or(syncKind(n), droppedCall), n.Pos(), n.End(), "error(nil)")
	}
	if slices.Contains(alike, nameOfCall(n)) {
		return
	}
	for i := 1; i < len(n.Args); i++ {
		a, b := n.Args[i-1], n.Args[i]
		ta, tb := s.info.Types[a].Type, s.info.Types[b].Type
		if ta != nil && tb != nil && types.Identical(types.Default(ta), types.Default(tb)) && s.text(a) != s.text(b) {
			s.add(swapped, a.Pos(), b.End(), s.text(b)+s.between(a, b)+s.text(a))
		}
	}
}

func (s *finder) between(a, b ast.Node) string {
	return string(s.source[s.offset(a.End()):s.offset(b.Pos())])
}

// composite adds faults of the named fields of a struct.
func (s *finder) composite(n *ast.CompositeLit) {
	t := s.info.Types[n].Type
	if t == nil {
		return
	}
	if _, ok := t.Underlying().(*types.Struct); !ok {
		return
	}
	for i, e := range n.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok || slices.Contains(messageFields, s.text(kv.Key)) || strings.HasPrefix(s.text(kv.Value), "make(") {
			continue
		}
		// With the comma after it, or before it if it is the last.
		from, to := kv.Pos(), kv.End()
		switch last := len(n.Elts) - 1; {
		case i < last && s.lineOf(n.Elts[i+1].Pos()) == s.lineOf(to):
			to = n.Elts[i+1].Pos()
		case s.source[s.offset(to)] == ',':
			to++
		case i > 0:
			from = n.Elts[i-1].End()
		}
		s.add(forgotten, from, to, "")
	}
}

func (s *finder) lineOf(p token.Pos) int { return s.fset.Position(p).Line }

// assignment adds faults of assignments to fields and maps.
func (s *finder) assignment(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE {
		return
	}
	for _, l := range n.Lhs {
		switch l := l.(type) {
		case *ast.SelectorExpr:
			if slices.Contains(messageFields, l.Sel.Name) {
				return
			}
		case *ast.IndexExpr:
		default:
			return
		}
	}
	if block, ok := s.parent().(*ast.BlockStmt); ok && slices.Contains(block.List, ast.Stmt(n)) {
		s.add(forgotten, n.Pos(), n.End(), "")
	} else if _, ok := s.parent().(*ast.CaseClause); ok {
		s.add(forgotten, n.Pos(), n.End(), "")
	}
}

func (s *finder) returns(n *ast.ReturnStmt) {
	for _, r := range n.Results {
		tv := s.info.Types[r]
		switch {
		case tv.Type == nil, tv.IsNil():
		case isError(tv.Type):
			s.add(ignoredError, r.Pos(), r.End(), "nil")
		case implementsError(tv.Type) && len(n.Results) == 1:
			s.add(ignoredError, r.Pos(), r.End(), "nil")
		case tv.Value != nil && (tv.Value.String() == "0" || tv.Value.String() == `""`):
			// It is zero already.
		case s.fails(n):
			// Results next to an error are not used.
		default:
			zero := s.zero(tv.Type)
			if zero != "" && zero != s.text(r) && !strings.HasSuffix(s.text(r), "{}") {
				s.add(zeroReturned, r.Pos(), r.End(), zero)
			} else if zero == "false" {
				s.add(zeroReturned, r.Pos(), r.End(), "true")
			}
		}
	}
}

// fails reports whether a return certainly returns no result: it returns false, or an error that is
// created there or was compared with nil.
func (s *finder) fails(n *ast.ReturnStmt) bool {
	last := n.Results[len(n.Results)-1]
	if len(n.Results) > 1 && s.text(last) == "false" {
		return true
	}
	if tv := s.info.Types[last]; len(n.Results) < 2 || tv.IsNil() || !isError(tv.Type) && !implementsError(tv.Type) {
		return false
	}
	if call, ok := last.(*ast.CallExpr); ok && isMessageCall(call) || strings.HasPrefix(s.text(last), "Err") {
		return true
	}
	for i := len(s.path) - 1; i > 0; i-- {
		if in, ok := s.path[i-1].(*ast.IfStmt); ok && in.Body == s.path[i] &&
			strings.Contains(s.text(in.Cond), s.text(last)+" != nil") {
			return true
		}
	}
	return false
}

func implementsError(t types.Type) bool {
	return types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// zero returns the text of a type's zero value, "" if it has no short one.
func (s *finder) zero(t types.Type) string {
	switch u := t.Underlying().(type) {
	case *types.Basic:
		switch {
		case u.Info()&types.IsBoolean != 0:
			return "false"
		case u.Info()&types.IsString != 0:
			return `""`
		case u.Info()&types.IsNumeric != 0:
			return "0"
		}
	case *types.Pointer, *types.Slice, *types.Map, *types.Chan, *types.Signature, *types.Interface:
		return "nil"
	case *types.Struct:
		return types.TypeString(t, func(p *types.Package) string {
			if p.Path() == s.pkg {
				return ""
			}
			return p.Name()
		}) + "{}"
	}
	return ""
}
