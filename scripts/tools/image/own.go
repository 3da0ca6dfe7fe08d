package image

// Own is an image of the product.
type Own struct {
	Name     string   // without registry and tag; the manifests name leasehold/Name
	Packages []string // directories of its programs, relative to the repository; the first is the entrypoint
	User     string   // empty for root
}

// Product are the images of the manifests in daemonset/. The installer and the agent work on the
// host's files and namespaces as root.
var Product = []Own{
	{"installer", []string{"daemonset/installer", "plugins/ipam/leasehold"}, ""},
	{"agent", []string{"cmd/leasehold-agent", "cmd/leasectl"}, ""},
	{"manager", []string{"cmd/leasehold-manager"}, "65532:65532"},
}
