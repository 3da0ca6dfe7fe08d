package image

// Own is an image of the product.
type Own struct {
	Name     string   // without registry and tag; the manifests name leasehold/Name
	Packages []string // directories of its programs, relative to the repository; the first is the entrypoint
	User     string   // empty for root
	As       string   // the name of the first program in the image; empty for its own
}

// Product are the images of the manifests in daemonset/. The agent's works on the host's
// files and namespaces as root, and has leasectl and the plugin for the init container, which
// installs it.
var Product = []Own{
	{Name: "agent", Packages: []string{"cmd/leasehold-agent", "cmd/leasectl", "plugins/ipam/leasehold"}},
	{Name: "manager", Packages: []string{"cmd/leasehold-manager"}, User: "65532:65532"},
}
