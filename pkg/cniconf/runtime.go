package cniconf

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// RuntimeFiles are the configuration files of containerd and CRI-O, see ReadRuntime.
const RuntimeFiles = "/etc/containerd/config.toml,/etc/crio/crio.conf,/etc/crio/crio.conf.d/*"

// Runtime is what the configuration of the container runtime says about CNI.
type Runtime struct {
	ConfDir string   // the directory of CNI configurations
	BinDirs []string // the directories of CNI plugins
	Rules   Rules
}

// The keys in the configuration files of containerd and CRI-O.
var (
	confKeys = regexp.MustCompile(`(?m)^\s*(?:conf_dir|network_dir)\s*=\s*["']([^"']+)["']`)
	binKeys  = regexp.MustCompile(`(?m)^\s*(?:bin_dirs?|plugin_dirs)\s*=\s*(\[[^]]*\]|["'][^"']+["'])`)
	quoted   = regexp.MustCompile(`["']([^"']+)["']`)
	maxFiles = regexp.MustCompile(`(?m)^\s*max_conf_num\s*=\s*(\d+)`) // containerd's; 0: all
	ofCRIO   = regexp.MustCompile(`(?m)^\s*\[crio`)
)

// ReadRuntime reads the configuration of the container runtime from files, which are patterns
// joined by commas. If several files have a key, the last one counts. Files that cannot be read,
// and keys that are missing, leave the defaults of the runtimes.
func ReadRuntime(files string) Runtime {
	r := Runtime{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}, Rules: Rules{MaxFiles: 1}}
	for pattern := range strings.SplitSeq(files, ",") {
		paths, _ := filepath.Glob(pattern) // an error means that the pattern is invalid: no file matches
		for _, path := range paths {
			content, _ := os.ReadFile(path) // nil if it cannot be read
			if m := confKeys.FindSubmatch(content); m != nil {
				r.ConfDir = string(m[1])
			}
			if m := binKeys.FindSubmatch(content); m != nil {
				r.BinDirs = nil
				for _, q := range quoted.FindAllSubmatch(m[1], -1) {
					r.BinDirs = append(r.BinDirs, string(q[1]))
				}
			}
			if m := maxFiles.FindSubmatch(content); m != nil {
				n, _ := strconv.Atoi(string(m[1])) // digits
				r.Rules.MaxFiles = cmp.Or(n, -1)
			}
			r.Rules.SkipInvalid = r.Rules.SkipInvalid || ofCRIO.Match(content)
		}
	}
	return r
}
