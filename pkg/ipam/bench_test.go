package ipam

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkAddDel is the work of an ADD and a DEL without the process around it.
func BenchmarkAddDel(b *testing.B) {
	w := newWorld(b, "10.0.0.0/16")
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint("c", i)
		if _, err := w.service.Assign(context.Background(), w.request(ask{container: id})); err != nil {
			b.Fatal(err)
		}
		if err := w.service.Release(context.Background(), on(id, "eth0"), w.where()); err != nil {
			b.Fatal(err)
		}
	}
}
