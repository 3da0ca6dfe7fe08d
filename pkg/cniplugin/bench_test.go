package cniplugin

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

// BenchmarkAdd is the work of an ADD outside of its transaction: the configuration is decoded, the
// result is printed.
func BenchmarkAdd(b *testing.B) {
	p, stdout, _ := plugin(&recorder{result: ipam.Result{Addresses: dualStack.Addresses}})
	args := addArgs(conf(`"ipam":{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64"}]]},`+
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"io.kubernetes.cri/reserved-ip-duration":"10"}}`), "")
	for b.Loop() {
		stdout.Reset()
		if err := p.Add(args); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDel is the same for a DEL.
func BenchmarkDel(b *testing.B) {
	p, _, _ := plugin(&recorder{})
	args := addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")
	for b.Loop() {
		if err := p.Del(args); err != nil {
			b.Fatal(err)
		}
	}
}
