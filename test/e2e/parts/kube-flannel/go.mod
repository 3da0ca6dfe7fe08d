module github.com/leasehold-cni/leasehold/test/e2e/parts/kube-flannel

go 1.26

// Of flannel only its manifest is used.
require github.com/flannel-io/flannel v0.28.4
