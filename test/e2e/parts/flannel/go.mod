module github.com/leasehold-cni/leasehold/test/e2e/parts/flannel

go 1.26

tool github.com/containernetworking/plugins/plugins/meta/flannel

require github.com/containernetworking/plugins v0.9.1

require github.com/containernetworking/cni v0.8.1 // indirect
