package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"slices"
	"strings"
)

// Code that only composes messages gets no faults, because no behaviour depends on it.

var (
	messageFields = []string{"Reason", "Why", "Message", "Help", "reason", "why", "Log", "log"}
	// messageCalls are functions and methods that compose messages, log or warn.
	messageCalls = []string{"errors.New", "warn", "Warn", "Warnf", "note", "notes.add", "errorf",
		"badArgs", "panic", "prometheus.NewDesc", "Eventf", "With"}
	// messagePrefixes are packages that do nothing else.
	messagePrefixes = []string{"fmt.", "slog.", "log.", "klog."}
	// logMethods are those of loggers.
	logMethods = []string{"Debug", "Info", "Warn", "Error"}
)

// nameOfCall returns a name such as "f", "pkg.F" or ".Method".
func nameOfCall(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	}
	return ""
}

// isMessage reports whether only messages depend on a node.
func (s *finder) isMessage(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return isMessageCall(n)
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		return ok && isMessageCall(call)
	case *ast.AssignStmt:
		return s.setsText(n)
	case *ast.KeyValueExpr:
		return slices.Contains(messageFields, s.text(n.Key))
	case *ast.IfStmt:
		return n.Init == nil && s.onlyMessages(n)
	}
	return false
}

// setsText reports whether a statement assigns a text with a literal to a local variable.
func (s *finder) setsText(n *ast.AssignStmt) bool {
	if n.Tok == token.DEFINE || len(n.Lhs) != 1 {
		return false
	}
	if _, ok := n.Lhs[0].(*ast.Ident); !ok {
		return false
	}
	text := n.Rhs[0]
	for {
		sum, ok := text.(*ast.BinaryExpr)
		if !ok {
			break
		}
		if lit, ok := sum.Y.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			return true
		}
		text = sum.X
	}
	lit, ok := text.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

// onlyMessages reports whether an if statement only affects messages.
func (s *finder) onlyMessages(n *ast.IfStmt) bool {
	other := func(n ast.Stmt) bool { return !s.isMessage(n) }
	return n.Else == nil && len(n.Body.List) > 0 && !slices.ContainsFunc(n.Body.List, other)
}

// decidesOnMessages reports whether a node is the condition of such an if statement.
func (s *finder) decidesOnMessages(parent, n ast.Node) bool {
	in, ok := parent.(*ast.IfStmt)
	return ok && in.Cond == n && s.onlyMessages(in)
}

func isMessageCall(call *ast.CallExpr) bool {
	name := nameOfCall(call)
	method := name[strings.LastIndexByte(name, '.')+1:]
	return slices.Contains(messageCalls, name) || slices.Contains(messageCalls, method) ||
		slices.ContainsFunc(messagePrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.Contains(logMethods, method) && len(call.Args) > 0
}

// equivalent is an entry of equivalent.txt: a fault that does not change the behaviour, by its
// function and the line before and after. An entry without lines is a function that only composes
// messages.
type equivalent struct {
	pkg, function, before, after, reason string
}

// readKnown reads equivalent.txt. An entry is "package function", the two lines after - and +, and
// the reason, all but the first indented; # begins a comment.
func readKnown(path string) ([]equivalent, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var known []equivalent
	for i, line := range strings.Split(string(b), "\n") {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#':
			continue
		case text == line:
			pkg, function, ok := strings.Cut(text, " ")
			if !ok {
				return nil, fmt.Errorf("%s:%d: want a package and a function", path, i+1)
			}
			known = append(known, equivalent{pkg: pkg, function: function})
			continue
		case len(known) == 0:
			return nil, fmt.Errorf("%s:%d: an entry begins with a package and a function", path, i+1)
		}
		k := &known[len(known)-1]
		if before, ok := strings.CutPrefix(text, "- "); ok {
			k.before = before
		} else if after, ok := strings.CutPrefix(text, "+ "); ok || text == "+" {
			k.after = after
		} else {
			k.reason = strings.TrimSpace(k.reason + " " + text)
		}
	}
	for _, k := range known {
		if k.reason == "" {
			return nil, fmt.Errorf("%s: %s %s has no reason", path, k.pkg, k.function)
		}
	}
	return known, nil
}

// isStale reports whether the function or the line of an entry does not exist.
func isStale(packages []*pkgSites, k equivalent) bool {
	for _, p := range packages {
		if p.dir == k.pkg {
			return !slices.Contains(p.functions, k.function) ||
				k.before != "" && !slices.ContainsFunc(p.sites, func(f *fault) bool {
					return f.function == k.function && lineAt(p.sources[f.file], f.from) == k.before
				})
		}
	}
	return false
}

func composesMessages(known []equivalent, pkg, function string) bool {
	return slices.ContainsFunc(known, func(k equivalent) bool {
		return k.pkg == pkg && k.function == function && k.before == ""
	})
}

func reasonOf(known []equivalent, f *fault) string {
	for _, k := range known {
		if k.pkg == f.pkg && k.function == f.function && k.before == f.before && k.after == f.after {
			return k.reason
		}
	}
	return ""
}
