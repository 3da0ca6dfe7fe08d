package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
)

// plain writes text with control characters made visible. Names come from runtimes and pods, and a
// terminal would interpret escape sequences in them.
type plain struct{ io.Writer }

func (p plain) Write(b []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(b) {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(p.Writer, out.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// inCell makes visible what would end a cell of a table.
var inCell = strings.NewReplacer("\n", `\n`, "\t", `\t`, "\f", `\f`, "\v", `\v`)

// PrintRows prints rows as JSON, or as a table with the given heads, which are separated by spaces.
// cells returns the cells of a row; one that is "" is not known, which a table shows as "-".
func PrintRows[T any](a *App, rows []T, heads string, cells func(T) []string) error {
	if a.Output == "json" {
		return a.PrintJSON(rows)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(heads, " ", "\t"))
	for _, r := range rows {
		words := cells(r)
		for i, word := range words {
			words[i] = cmp.Or(inCell.Replace(word), "-")
		}
		fmt.Fprintln(w, strings.Join(words, "\t"))
	}
	return w.Flush()
}

// PrintJSON prints a value as JSON.
func (a *App) PrintJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false) // output may have shell commands with &&
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Say prints a line on standard error, with the name by which the program was called.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, a.program+": "+format+"\n", args...)
}

// Qualified returns a name with its namespace, "" if there is no name.
func Qualified(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// AddressText returns an address as text, "" if there is none.
func AddressText(a netip.Addr) string {
	text, _ := a.MarshalText() // without an error for each address
	return string(text)
}

// Step prints what a command does next, or a line of its result.
func (a *App) Step(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }

// Ask prints a question on standard error, and reports whether the user answers yes, or has set the
// flag --yes. Without an answer it reports false.
func (a *App) Ask(cmd *cobra.Command, question string) bool {
	if a.Yes {
		return true
	}
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return true
	}
	fmt.Fprintln(a.Stderr, "Nothing was changed.")
	return false
}

// Agree returns an error unless Ask reports true.
func (a *App) Agree(cmd *cobra.Command, question string) error {
	if a.Ask(cmd, question) {
		return nil
	}
	return errors.New("the answer was not yes; --yes does not ask")
}

// Change shows how a configuration is to change, and reports whether that is to be done: not if it
// is so already, or agreed reports false.
func (a *App) Change(name string, before, after []byte, agreed func() bool) bool {
	if bytes.Equal(before, after) {
		a.Step("%s is so already", name)
		return false
	}
	fmt.Fprintf(a.Stdout, "%s", diff.Diff(name, before, name, after))
	return agreed()
}
