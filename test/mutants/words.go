package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"slices"
	"strings"
)

// What only words messages is left alone: it changes nothing that is promised.

var (
	wordFields = []string{"Reason", "Why", "Message", "Help", "reason", "why"}
	// wordCalls are functions and methods that word, log or warn.
	wordCalls = []string{"errors.New", "warn", "Warn", "note", "notes.add", "errorf", "panic", "prometheus.NewDesc",
		"Eventf", "With"}
	// wordPrefixes are packages that do nothing else.
	wordPrefixes = []string{"fmt.", "slog.", "log.", "klog."}
	// logMethods do so for a logger.
	logMethods = []string{"Debug", "Info", "Warn", "Error"}
)

// nameOfCall is "f", "pkg.F" or "x.y.Method".
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

// isWords reports whether nothing but messages depends on a node.
func (s *seeker) isWords(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return isWordCall(n)
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		return ok && isWordCall(call)
	case *ast.AssignStmt:
		return s.isWording(n)
	case *ast.KeyValueExpr:
		return slices.Contains(wordFields, s.text(n.Key))
	case *ast.IfStmt:
		return n.Init == nil && s.onlyWords(n)
	}
	return false
}

// isWording reports whether a statement gives a local variable a text that is written there.
func (s *seeker) isWording(n *ast.AssignStmt) bool {
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

// onlyWords reports whether an if decides on messages alone.
func (s *seeker) onlyWords(n *ast.IfStmt) bool {
	notWords := func(n ast.Stmt) bool { return !s.isWords(n) }
	return n.Else == nil && len(n.Body.List) > 0 && !slices.ContainsFunc(n.Body.List, notWords)
}

// decidesOnWords reports whether a node is the condition of such an if.
func (s *seeker) decidesOnWords(parent, n ast.Node) bool {
	in, ok := parent.(*ast.IfStmt)
	return ok && in.Cond == n && s.onlyWords(in)
}

func isWordCall(call *ast.CallExpr) bool {
	name := nameOfCall(call)
	method := name[strings.LastIndexByte(name, '.')+1:]
	return slices.Contains(wordCalls, name) || slices.Contains(wordCalls, method) ||
		slices.ContainsFunc(wordPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.Contains(logMethods, method) && len(call.Args) > 0
}

// An equivalent fault changes nothing, as somebody argues: in a function, by a line as it was and
// as it is, wherever that line is. One without lines is about the whole function, which only words
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

// isStale reports whether an entry is of a function or of a line that its package does not have.
func isStale(packages []*pack, k equivalent) bool {
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

func onlyWords(known []equivalent, pkg, function string) bool {
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
