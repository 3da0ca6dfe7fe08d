package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// The picture has the steps until this one, without the lines of the pods that fill the pool.
const (
	recordedSteps   = 6
	recordedColumns = 118
	lineHeight      = 17
)

var filler = regexp.MustCompile(`default/(other-|fill-[0-5])`)

// keep keeps what was printed for the picture.
func (s *presenter) keep(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if s.steps >= 1 && s.steps <= recordedSteps && !filler.MatchString(line) {
			s.lines = append(s.lines, line)
		}
	}
}

// picture returns lines as an SVG in the colours of a terminal. Longer ones are cut.
func picture(lines []string) string {
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"`, recordedColumns*73/10+28,
		len(lines)*lineHeight+24)
	out.WriteString(` font-family="monospace" font-size="12">
<!-- Written by make demo FLAGS=-record=docs/images/demo.svg. -->
<rect width="100%" height="100%" rx="6" fill="#0d1117"/>
`)
	for i, line := range lines {
		colour := "#c9d1d9"
		switch {
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "  NETWORK"), strings.HasPrefix(line, "  podnet"):
			colour = "#8b949e"
		case !strings.HasPrefix(line, " "):
			colour = "#58a6ff"
		}
		if r := []rune(line); len(r) > recordedColumns {
			line = string(r[:recordedColumns-1]) + "…"
		}
		fmt.Fprintf(&out, `<text x="14" y="%d" fill="%s" xml:space="preserve">`, i*lineHeight+25, colour)
		xml.EscapeText(&out, []byte(line)) // a strings.Builder returns no error
		out.WriteString("</text>\n")
	}
	return out.String() + "</svg>\n"
}

// save writes the picture of what was printed in the recorded steps.
func (s *presenter) save(path string) error {
	return os.WriteFile(path, []byte(picture(s.lines[1:])), 0o644) // the first line is empty
}
