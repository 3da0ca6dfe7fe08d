package history

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A player plays a history to a recorder, one pass each second.
type player struct {
	Recorder
	now time.Time
}

// pass shows sandboxes with an address each, as "a=10.0.0.2", for some seconds.
func (p *player) pass(seconds int, shown ...string) {
	for range seconds {
		found := map[string][]netip.Addr{}
		unread := map[string]bool{}
		for _, s := range shown {
			sandbox, address, read := strings.Cut(s, "=")
			if !read {
				unread[sandbox] = true
				continue
			}
			found[sandbox] = append(found[sandbox], netip.MustParseAddr(address))
		}
		p.Seen(p.now, p.now.Add(100*time.Millisecond), found, unread)
		p.now = p.now.Add(time.Second)
	}
}

func TestCheck(t *testing.T) {
	web := Pod{Name: "ns/web-0", Node: "node1", Window: 10 * time.Second}
	moved := Pod{Name: "ns/web-0", Node: "node2", Window: 10 * time.Second}
	tests := []struct {
		name  string
		play  func(*player)
		wrong string // in the description of what is wrong, if something is
	}{
		{"one after the other", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(1)
			p.pass(3, "b=10.0.0.2")
		}, ""},
		{"between two passes", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(3, "b=10.0.0.2")
		}, ""},
		{"in both in one pass, during which it may have moved", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(1, "a=10.0.0.2", "b=10.0.0.2")
			p.pass(3, "b=10.0.0.2")
		}, ""},
		{"in two sandboxes at once", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(2, "a=10.0.0.2", "b=10.0.0.2")
			p.pass(3, "b=10.0.0.2")
		}, "10.0.0.2 had two holders"},
		{"a sandbox that could not be read has it still", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(3, "a", "b=10.0.0.2")
			p.pass(1, "a=10.0.0.2")
		}, "10.0.0.2 had two holders"},
		{"a sandbox could not be read and had ended", func(p *player) {
			p.pass(3, "a=10.0.0.2")
			p.pass(3, "a", "b=10.0.0.2")
			p.pass(1, "b=10.0.0.2")
		}, ""},
		{"a pod returns", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", web)
			p.pass(3, "a=10.0.0.2")
			p.pass(5, "c=10.0.0.3")
			p.pass(3, "b=10.0.0.2", "c=10.0.0.3")
		}, ""},
		{"a pod returns to another address", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", web)
			p.pass(3, "a=10.0.0.2")
			p.pass(5)
			p.pass(3, "b=10.0.0.3")
		}, "ns/web-0 IPv4 returned to another address"},
		{"a pod returns twice, the second time to another address", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", web)
			p.Belongs("c", web)
			p.pass(3, "a=10.0.0.2")
			p.pass(3)
			p.pass(3, "b=10.0.0.2")
			p.pass(3)
			p.pass(3, "c=10.0.0.3")
		}, "ns/web-0 IPv4 returned to another address"},
		{"a pod returns after its window", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", web)
			p.pass(3, "a=10.0.0.2")
			p.pass(12)
			p.pass(3, "b=10.0.0.3")
		}, ""},
		{"a pod returns on another node", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", moved)
			p.pass(3, "a=10.0.0.2")
			p.pass(3)
			p.pass(3, "b=10.1.0.2")
		}, ""},
		{"the former sandbox does not end", func(p *player) {
			p.Belongs("a", web)
			p.Belongs("b", web)
			p.pass(3, "a=10.0.0.2")
			p.pass(3, "a=10.0.0.2", "b=10.0.0.3")
			p.pass(3, "b=10.0.0.3")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &player{now: time.Unix(1000, 0)}
			p.pass(1)
			tt.play(p)
			spans := p.Spans()
			wrong := strings.Join(Check(spans), "\n")
			if (wrong != "") != (tt.wrong != "") || !strings.Contains(wrong, tt.wrong) {
				t.Errorf("%q, want %q in it; the spans are %v", wrong, tt.wrong, spans)
			}
		})
	}
}
