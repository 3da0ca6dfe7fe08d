package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A fault is one line of a package, changed.
type fault struct {
	pkg, file     string // in the module
	line          int
	function      string // "lines", "call.look"
	kind          string
	before, after string // the line

	text     []byte // of the file
	from, to int    // what is replaced
	by       string // and by what

	killer string // the test that failed; "" if none did
	reason string // why it is equivalent, from equivalent.txt
}

func (f *fault) String() string {
	return fmt.Sprintf("%s:%d %s: %s\n\t- %s\n\t+ %s\n\t%s", f.file, f.line, f.function, f.kind, f.before, f.after,
		f.reason)
}

// source returns the file with the fault.
func (f *fault) source() []byte { return slices.Concat(f.text[:f.from], []byte(f.by), f.text[f.to:]) }

// key is what equivalent.txt says of a fault.
func (f *fault) key() string { return f.pkg + " " + f.function + "\n" + f.before + "\n" + f.after }

// readKnown reads equivalent.txt: the reasons of faults by their keys. An entry is "package
// function", the line before after "- ", the one after "+ ", and the reason, all but the first
// indented; # begins a comment. An entry without lines is a function that only composes messages.
func readKnown(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known := map[string]string{}
	key := ""
	for line := range strings.Lines(string(b)) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#':
		case line[0] != '\t':
			key = text
		case strings.HasPrefix(text, "- "), strings.HasPrefix(text, "+ "), text == "+":
			key += "\n" + strings.TrimSpace(text[1:])
		default:
			known[key] = strings.TrimSpace(known[key] + " " + text)
		}
	}
	return known, nil
}

// find lists the places for faults in a package.
func find(dir string, known map[string]string) (found []*fault, err error) {
	names, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(filepath.Base(name), "zz_generated") {
			continue
		}
		s := &finder{fset: token.NewFileSet(), pkg: dir, file: name}
		if s.text, err = os.ReadFile(name); err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(s.fset, name, s.text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			s.function = nameOf(fn)
			if method := fn.Name.Name; method != "String" && method != "Error" && method != "init" &&
				known[dir+" "+s.function] == "" {
				ast.Inspect(fn.Body, s.visit)
			}
		}
		found = append(found, s.found...)
	}
	return found, nil
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
	return of.(*ast.Ident).Name + "." + fn.Name.Name
}

// finder finds the places for faults in a file.
type finder struct {
	fset      *token.FileSet
	pkg, file string
	text      []byte
	function  string
	found     []*fault
}

func (s *finder) offset(p token.Pos) int { return s.fset.Position(p).Offset }

func (s *finder) textOf(n ast.Node) string {
	return string(s.text[s.offset(n.Pos()):s.offset(n.End())])
}

// add adds a fault that replaces a part of one line.
func (s *finder) add(kind string, from, to token.Pos, by string) {
	line := s.fset.Position(from).Line
	if line != s.fset.Position(to).Line {
		return
	}
	f := &fault{pkg: s.pkg, file: s.file, line: line, function: s.function, kind: kind, text: s.text,
		from: s.offset(from), to: s.offset(to), by: by}
	lineOf := func(text []byte) string { return strings.TrimSpace(strings.Split(string(text), "\n")[line-1]) }
	f.before, f.after = lineOf(f.text), lineOf(f.source())
	s.found = append(s.found, f)
}

const (
	comparison   = "comparison"
	boundary     = "boundary"
	negation     = "negated condition"
	condition    = "part of a condition"
	droppedCall  = "dropped call"
	skippedSync  = "skipped sync"
	forgotten    = "missing assignment"
	ignoredError = "ignored error"
	otherResult  = "other result"
)

var (
	negated = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: ">=", token.GTR: "<=",
		token.LEQ: ">", token.GEQ: "<"}
	// messageFields are fields on which only messages depend.
	messageFields = []string{"Reason", "Why", "Message", "Help", "reason", "why", "Log", "log"}

	shifted = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
)

// visit adds the faults of a node, and reports whether there may be others inside.
func (s *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return !isMessage(n)
	case *ast.BinaryExpr:
		s.binary(n)
	case *ast.IfStmt:
		if onlyMessages(n) {
			return false
		}
		if isNilCheck(n.Cond) {
			by := map[token.Token]string{token.NEQ: " && false", token.EQL: " || true"}[n.Cond.(*ast.BinaryExpr).Op]
			s.add(ignoredError, n.Cond.End(), n.Cond.End(), by)
		}
		switch cond := n.Cond.(type) {
		case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr:
			s.add(negation, cond.Pos(), cond.Pos(), "!")
		case *ast.UnaryExpr:
			s.add(negation, cond.Pos(), cond.X.Pos(), "")
		}
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !isMessage(call) {
			s.add(droppedCall, n.Pos(), n.End(), "")
		}
	case *ast.DeferStmt:
		s.add(droppedCall, n.Pos(), n.End(), "")
	case *ast.AssignStmt:
		s.assignment(n)
	case *ast.ReturnStmt:
		for _, r := range n.Results {
			switch text := s.textOf(r); {
			case text == "err" || strings.HasPrefix(text, "Err"):
				s.add(ignoredError, r.Pos(), r.End(), "nil")
			case text == "true" || text == "false":
				s.add(otherResult, r.Pos(), r.End(), map[string]string{"true": "false", "false": "true"}[text])
			default:
				if call, ok := r.(*ast.CallExpr); ok && isSync(call) {
					s.add(skippedSync, r.Pos(), r.End(), "nil")
				}
			}
		}
	}
	return true
}

func (s *finder) binary(n *ast.BinaryExpr) {
	end := n.OpPos + token.Pos(len(n.Op.String()))
	switch {
	case isNilCheck(n):
	case negated[n.Op] != "":
		s.add(comparison, n.OpPos, end, negated[n.Op])
		if by := shifted[n.Op]; by != "" {
			s.add(boundary, n.OpPos, end, by)
		}
	case n.Op == token.ADD || n.Op == token.SUB:
		if lit, ok := n.Y.(*ast.BasicLit); ok && lit.Kind == token.INT {
			s.add(boundary, n.X.End(), n.Y.End(), "")
		}
	case n.Op == token.LAND || n.Op == token.LOR:
		s.add(condition, n.OpPos, end, map[token.Token]string{token.LAND: "||", token.LOR: "&&"}[n.Op])
		s.add(condition, n.X.Pos(), n.Y.Pos(), "") // without the left part
		s.add(condition, n.X.End(), n.Y.End(), "") // without the right one
	}
}

// isNilCheck reports whether an expression compares err with nil.
func isNilCheck(x ast.Expr) bool {
	n, ok := x.(*ast.BinaryExpr)
	if !ok || n.Op != token.EQL && n.Op != token.NEQ {
		return false
	}
	a, _ := n.X.(*ast.Ident)
	b, _ := n.Y.(*ast.Ident)
	return a != nil && b != nil && a.Name == "err" && b.Name == "nil"
}

// assignment adds faults of assignments to fields and maps, and of syncs.
func (s *finder) assignment(n *ast.AssignStmt) {
	if call, ok := n.Rhs[0].(*ast.CallExpr); ok && isSync(call) && len(n.Lhs) == 1 {
		s.add(skippedSync, call.Pos(), call.End(), "error(nil)")
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
	if n.Tok != token.DEFINE {
		s.add(forgotten, n.Pos(), n.End(), "")
	}
}

// nameOfCall returns a name such as "f", "pkg.F" or ".Method".
func nameOfCall(call *ast.CallExpr) (qualifier, name string) {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return "", f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name, f.Sel.Name
		}
		return "", f.Sel.Name
	}
	return "", ""
}

func isSync(call *ast.CallExpr) bool {
	_, name := nameOfCall(call)
	return slices.Contains([]string{"Sync", "syncDir", "Fsync", "Fdatasync", "Syncfs"}, name)
}

// isMessage reports whether a call only composes a message, logs or warns.
func isMessage(call *ast.CallExpr) bool {
	qualifier, name := nameOfCall(call)
	return slices.Contains([]string{"fmt", "slog", "log", "klog"}, qualifier) || qualifier+"."+name == "errors.New" ||
		slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Warnf", "Eventf", "With", "warn", "note", "errorf",
			"badArgs", "panic", "NewDesc"}, name)
}

// onlyMessages reports whether only messages depend on a condition.
func onlyMessages(n *ast.IfStmt) bool {
	return n.Init == nil && n.Else == nil && len(n.Body.List) > 0 &&
		!slices.ContainsFunc(n.Body.List, func(st ast.Stmt) bool {
			x, ok := st.(*ast.ExprStmt)
			if !ok {
				return true
			}
			call, ok := x.X.(*ast.CallExpr)
			return !ok || !isMessage(call)
		})
}
