package crash_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// disk is a state of a file system. Contents are not changed in place, so that clone is cheap.
type disk struct {
	names map[string]int   // path -> file
	files map[int]contents // file -> its contents
}

type contents struct {
	size  int64
	pages map[int64]string // missing pages are zero
	mtime time.Time
}

const page = 4096

func newDisk() disk { return disk{map[string]int{}, map[int]contents{}} }

func (d disk) clone() disk { return disk{maps.Clone(d.names), maps.Clone(d.files)} }

// change is a change of a disk by a program. A write is split into pages, which the file system may
// write in any order.
type change struct {
	kind string // page, size, link, unlink, rename, mkdir; sync and printed do not change the disk
	file int
	path string // of the name, or of the directory that is synced
	to   string // the target of a rename
	at   int64  // the number of the page, or the size
	data string // the page, or the printed text
	when time.Time
}

// do applies a change. torn is how many bytes of a page are written; page for all.
func (d disk) do(c change, torn int) {
	f := d.files[c.file]
	switch c.kind {
	case "page":
		pages := maps.Clone(f.pages)
		if pages == nil {
			pages = map[int64]string{}
		}
		old := pages[c.at] + strings.Repeat("\x00", page-len(pages[c.at]))
		data := c.data[:min(torn, len(c.data))]
		pages[c.at] = data + old[len(data):]
		f.pages = pages
		f.size = max(f.size, c.at*page+int64(len(data)))
	case "size":
		pages := maps.Clone(f.pages)
		for at := range f.pages {
			if at*page >= c.at {
				delete(pages, at)
			}
		}
		f.size, f.pages = c.at, pages
	case "link":
		d.names[c.path] = c.file
		if !f.mtime.IsZero() {
			return
		}
	case "unlink":
		delete(d.names, c.path)
		return
	case "rename":
		d.names[c.to] = d.names[c.path]
		delete(d.names, c.path)
		return
	default:
		return
	}
	f.mtime = c.when
	d.files[c.file] = f
}

// empty removes what is in a directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// restore replaces the contents of the directories with the files of the disk.
func (d disk) restore(dirs ...string) error {
	for _, dir := range dirs {
		if err := empty(dir); err != nil {
			return err
		}
	}
	for path, id := range d.names {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := d.files[id].write(path); err != nil {
			return err
		}
	}
	return nil
}

func (c contents) write(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for at, data := range c.pages {
		if _, err := f.WriteAt([]byte(data), at*page); err != nil {
			return err
		}
	}
	if err := f.Truncate(c.size); err != nil || c.mtime.IsZero() {
		return err
	}
	return os.Chtimes(path, c.mtime, c.mtime)
}

// recorder converts the output of strace for consecutive processes into the changes below dirs.
type recorder struct {
	dirs    []string
	changes []change

	names map[string]int
	sizes map[int]int64
	fds   map[int]*descriptor
	last  int // file
	now   time.Time
}

type descriptor struct {
	file int
	path string
	at   int64 // the file offset of write(2)
}

// straceArgs returns a strace command whose output the recorder can read.
func straceArgs(output string) []string {
	return []string{"strace", "-f", "-ttt", "-xx", "-s", "99999999", "-o", output, "-e", "signal=none", "-e",
		"trace=openat,close,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,fsync,fdatasync," +
			"sync_file_range,rename,renameat,renameat2," +
			"unlink,unlinkat,link,linkat,symlinkat,mkdir,mkdirat,dup,dup2,dup3,copy_file_range,sendfile,splice,msync"}
}

var (
	straceBegin = regexp.MustCompile(`^\d+ +(\d+)\.(\d+) (\w+)\(`)
	straceEnd   = regexp.MustCompile(`^\) += (-?\d+|\?)`)
	straceRest  = regexp.MustCompile(`^(\d+) +[\d.]+ <\.\.\. \w+ resumed>`)
)

// read adds the trace of a process, whose clock was ahead by the given duration.
func (r *recorder) read(trace string, ahead time.Duration) error {
	text, err := os.ReadFile(trace)
	if err != nil {
		return err
	}
	r.fds = map[int]*descriptor{}
	begun := map[string]string{} // by thread
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if half, ok := strings.CutSuffix(line, " <unfinished ...>"); ok {
			thread, _, _ := strings.Cut(half, " ")
			begun[thread] = half
			continue
		}
		if m := straceRest.FindStringSubmatch(line); m != nil {
			line = begun[m[1]] + line[len(m[0]):]
		}
		begin := straceBegin.FindStringSubmatch(line)
		closing := strings.LastIndex(line, ")")
		if begin == nil || closing < 0 {
			continue // a thread has ended
		}
		end := straceEnd.FindStringSubmatch(line[closing:])
		if end == nil { // "-1 ENOENT (No such file or directory)"
			continue
		}
		seconds, err1 := strconv.ParseInt(begin[1], 10, 64)
		micros, err2 := strconv.ParseInt(begin[2], 10, 64)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("invalid time: %.200s", line)
		}
		r.now = time.Unix(seconds, micros*1000).Add(ahead)
		if err := r.call(begin[3], strings.Split(line[len(begin[0]):closing], ", "), end[1]); err != nil {
			return fmt.Errorf("%w: %.200s", err, line)
		}
	}
	return nil
}

func (r *recorder) call(name string, args []string, returned string) error {
	result, err := strconv.Atoi(returned)
	if err != nil || result < 0 {
		return nil // a failed call changes nothing
	}
	switch name {
	case "openat":
		r.open(unhex(args[1]), args[2], result)
		return nil
	case "renameat", "renameat2":
		r.rename(unhex(args[1]), unhex(args[3]))
		return nil
	case "unlinkat":
		if path := unhex(args[1]); r.isWatched(path) {
			r.add(change{kind: "unlink", path: path})
			delete(r.names, path)
		}
		return nil
	case "mkdirat":
		return nil // a directory is durable if a file in it is
	}
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("unexpected system call")
	}
	d := r.fds[fd]
	switch {
	case name == "close":
		delete(r.fds, fd)
	case name == "write" && fd == 1:
		r.add(change{kind: "printed", data: unhex(args[1])})
	case d == nil: // a file outside dirs
	case name == "write":
		r.write(d.file, d.at, unhex(args[1])[:result])
		d.at += int64(result)
	case name == "pwrite64":
		at, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			return err
		}
		r.write(d.file, at, unhex(args[1])[:result])
	case name == "ftruncate":
		size, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		r.size(d.file, size)
	case name == "fallocate":
		offset, err1 := strconv.ParseInt(args[2], 10, 64)
		length, err2 := strconv.ParseInt(args[3], 10, 64)
		if args[1] != "0" || err1 != nil || err2 != nil {
			return fmt.Errorf("unexpected mode of fallocate")
		}
		r.size(d.file, max(r.sizes[d.file], offset+length))
	case name == "fsync" || name == "fdatasync":
		r.add(change{kind: "sync", file: d.file, path: d.path})
	default:
		return fmt.Errorf("unexpected system call")
	}
	return nil
}

func (r *recorder) isWatched(path string) bool {
	return slices.ContainsFunc(r.dirs, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

func (r *recorder) add(c change) {
	c.when = r.now
	r.changes = append(r.changes, c)
}

func (r *recorder) open(path, flags string, fd int) {
	delete(r.fds, fd)
	if !r.isWatched(path) {
		return
	}
	id, there := r.names[path]
	if !there && strings.Contains(flags, "O_CREAT") {
		r.last++
		id = r.last
		r.names[path] = id
		r.add(change{kind: "link", path: path, file: id})
	}
	if strings.Contains(flags, "O_TRUNC") && r.sizes[id] > 0 {
		r.size(id, 0)
	}
	r.fds[fd] = &descriptor{file: id, path: path}
}

func (r *recorder) rename(from, to string) {
	if r.isWatched(from) || r.isWatched(to) {
		r.add(change{kind: "rename", path: from, to: to})
		r.names[to] = r.names[from]
		delete(r.names, from)
	}
}

func (r *recorder) size(file int, size int64) {
	if size != r.sizes[file] {
		r.add(change{kind: "size", file: file, at: size})
		r.sizes[file] = size
	}
}

func (r *recorder) write(file int, at int64, data string) {
	if at%page != 0 && len(data) > 0 && at/page != (at+int64(len(data))-1)/page {
		panic("crash: unaligned write to more than one page")
	}
	for len(data) > 0 {
		n := min(page, len(data))
		r.add(change{kind: "page", file: file, at: at / page, data: strings.Repeat("\x00", int(at%page)) + data[:n]})
		at += int64(n)
		data = data[n:]
	}
	r.sizes[file] = max(r.sizes[file], at)
}

// unhex decodes a string of strace, such as "\x41\x42".
func unhex(quoted string) string {
	quoted = strings.Trim(quoted, `"`)
	out := make([]byte, 0, len(quoted)/4)
	for i := 0; i+4 <= len(quoted); i += 4 {
		n, err := strconv.ParseUint(quoted[i+2:i+4], 16, 8)
		if err != nil {
			return quoted
		}
		out = append(out, byte(n))
	}
	return string(out)
}
