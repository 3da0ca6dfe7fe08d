package lease

import "testing"

func TestHolderName(t *testing.T) {
	for _, h := range []Holder{{ContainerID: "0123", IfName: "eth0"}, {ContainerID: "a-b.c_d", IfName: "e@th"}} {
		if got, ok := ParseHolder(h.Name()); !ok || got != h {
			t.Errorf("%+v became %q and then %+v, %v", h, h.Name(), got, ok)
		}
	}
}

func FuzzParseHolder(f *testing.F) {
	for _, s := range []string{"c1@eth0", "", "@", "c1", "c1@", "@eth0", "../c@eth0", "c@e/th", "a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, ok := ParseHolder(s)
		if ok && h.Name() != s || !ok && h != (Holder{}) {
			t.Errorf("%q is %+v, %v", s, h, ok)
		}
	})
}
