package lease

import "testing"

func TestAttachmentName(t *testing.T) {
	for _, h := range []Attachment{{ContainerID: "0123", IfName: "eth0"}, {ContainerID: "a-b.c_d", IfName: "e@th"}} {
		if got, ok := ParseAttachment(h.Name()); !ok || got != h {
			t.Errorf("%+v became %q and then %+v, %v", h, h.Name(), got, ok)
		}
	}
}

// Names of attachments are used as file names, so that others must be rejected.
func TestParseAttachmentRejects(t *testing.T) {
	for _, name := range []string{"", "@", "c1", "c1@", "@eth0", "../c@eth0", "c@e/th", "/@eth0"} {
		if h, ok := ParseAttachment(name); ok || h != (Attachment{}) {
			t.Errorf("%q is %+v", name, h)
		}
	}
}

func TestKey(t *testing.T) {
	pool, holder := Pool{DataDir: "/d", Network: "net"}, Holder{ContainerID: "c1", IfName: "eth0"}
	for _, tt := range []struct {
		namespace, name string
		reserveAs       string
		superseded      bool
		want            Key
	}{
		{"db", "db-0", "", false, Key{pool, "db", "db-0", "", "eth0"}},
		{"db", "db-0", "", true, Key{}},
		{"db", "db-0", "db-0", false, Key{pool, "db", "", "db-0", "eth0"}},
		{"db", "db-0", "db-0", true, Key{}},
		{"", "db-0", "", false, Key{pool, "", "db-0", "", "eth0"}},
		{"db", "", "", false, Key{pool, "db", "", "", "eth0"}},
		{"", "", "", false, Key{}}, // every caller without a pod name would have the same key
	} {
		l := Lease{Pool: pool, Namespace: tt.namespace, Name: tt.name, Holder: holder, Superseded: tt.superseded,
			ReserveAs: tt.reserveAs}
		if got := l.Key(); got != tt.want || got.IsZero() != (tt.want == Key{}) {
			t.Errorf("%+v: key %+v, zero %v", tt, got, got.IsZero())
		}
	}
}

func FuzzParseAttachment(f *testing.F) {
	for _, s := range []string{"c1@eth0", "", "@", "c1", "c1@", "@eth0", "../c@eth0", "c@e/th", "a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, ok := ParseAttachment(s)
		if ok && h.Name() != s || !ok && h != (Attachment{}) {
			t.Errorf("%q is %+v, %v", s, h, ok)
		}
	})
}
