package differential

import "strings"

// callers are calls of real runtimes and configurations, to which both programs reply the same.
var callers = map[string][]Call{
	"podman 4": {
		add("c1", podman).args("IgnoreUnknown=1;K8S_POD_NAME=web"),
		add("c2", podman).args("IgnoreUnknown=1;K8S_POD_NAME=compose_app_1;MAC=02:00:00:00:00:01"),
		check("c1", podman).args("IgnoreUnknown=1;K8S_POD_NAME=web").prev(1),
		del("c1", podman).args("IgnoreUnknown=1;K8S_POD_NAME=web"),
		add("c1", podman).args("IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.88.0.2"),
	},
	"podman 3": {
		add("c1", podman).args(ofPod("My_App", "My_App") + ";K8S_POD_INFRA_CONTAINER_ID=c1"),
		check("c1", podman).args(ofPod("My_App", "My_App")).prev(1),
	},
	"crictl":           {add("c1", plain).args(ofPod("", "demo") + ";K8S_POD_UID=")},
	"CRI-O's tutorial": {add("c1", plain).args(ofPod("redhat.test.crio", "podsandbox1"))},
	"critest": {
		add("c1", plain).args(ofPod("n", "PodSandbox-for-create-test-4a1b")),
		del("c1", plain).args(ofPod("n", "PodSandbox-for-create-test-4a1b")),
	},
	"nerdctl": {
		add(strings.Repeat("i", 141), plain), check(strings.Repeat("i", 141), plain).prev(1),
		del(strings.Repeat("i", 141), plain), del(strings.Repeat("i", 141), plain), add("c2", plain),
	},
	"the longest ID": {
		add(strings.Repeat("i", 4096), plain), del(strings.Repeat("i", 4096), plain), add("c2", plain),
	},
	"a path as a name":     {add("c1", plain).args(ofPod("..", "../../etc/passwd"))},
	"no network namespace": {add("c1", plain).in("/run/netns/none"), check("c1", plain).prev(1)},
	"another requested address": {
		add("c1", plain), add("c1", plain).args("IP=10.0.0.9"), add("c2", plain), del("c1", plain),
	},
	"a CHECK without the result": {add("c1", plain), check("c1", with(plain, `"prevResult":{"cniVersion":"1.1.0"}`))},
	"a CHECK with another plugin's result": {add("c1", plain), check("c1", with(plain,
		`"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"2600:1f18::3/128"}]}`))},
	"a CHECK with a route that is none":  {add("c1", plain), check("c1", in(plain, `"routes":[{"dst":"x"}]`))},
	"a CHECK with a result that is none": {add("c1", plain), check("c1", with(plain, `"prevResult":"x"`))},
	"ipam twice": {
		add("c1", strings.Replace(plain, `"ipam":`, `"IPAM":{"rangeStart":"10.0.0.7"},"ipam":`, 1)),
	},
	"subnet and ranges": {add("c1", in(plain, `"ranges":[[{"subnet":"10.0.0.0/24"}]]`))},
	"a long line":       {add("c1", in(plain, `"resolvConf":"`+longLine+`"`))},
	"no resolv.conf":    {add("c1", in(plain, `"resolvConf":"/dev/null"`))},
	"null as a subnet":  {add("c1", in(dual, `"subnet":null`))},
	"an address that is none, without a subnet": {add("c1", in(dual, `"gateway":"x"`))},
	"a type that is none":                       {add("c1", with(plain, `"type":5`)), add("c2", in(plain, `"name":5`))},
}

const podman = `{"cniVersion":"0.4.0","name":"podman","type":"bridge","ipam":{"type":"host-local",` +
	`"ranges":[[{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

func ofPod(namespace, name string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name
}

func (c Call) prev(n int) Call { c.Prev = n; return c }
