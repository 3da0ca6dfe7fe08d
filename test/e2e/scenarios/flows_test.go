package scenarios

import (
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// udpFlow checks that UDP flows to a pod go on after it was recreated. Each is one socket that
// never stops sending, so that the node's conntrack entries do not time out.
func udpFlow(t *Test) {
	const hostPort = 9053
	n := t.Node(1)
	t.Step("an echoserver with the UDP port %d of %s starts, a client beside it, and one on %s", hostPort, n.Name,
		t.Node(2).Name)
	set := t.Echoserver("echoserver", n, 1, func(template *corev1.PodTemplateSpec) {
		template.Spec.Containers[0].Ports = []corev1.ContainerPort{
			{ContainerPort: 8080, HostPort: hostPort, Protocol: corev1.ProtocolUDP}}
	})
	before := set.Ready()
	server := before["echoserver-0"].Status
	var flows []flow
	for i := 1; i <= 2; i++ {
		name := fmt.Sprint("client", i)
		client := t.Echoserver(name, t.Node(i), 1).Ready()[name+"-0"]
		for _, ip := range server.PodIPs {
			flows = append(flows, t.flow(t.Sandbox(t.Node(i), client).NetNS, ip.IP, 8080))
		}
	}
	for _, ip := range server.HostIPs {
		flows = append(flows, t.flow("/proc/self/ns/net", ip.IP, hostPort))
	}
	reply := t.reply(flows, "")
	for range 3 {
		t.Step("%d flows get replies; the echoserver is deleted", len(flows))
		set.Delete(before)
		var after Pods
		t.Eventually("the new echoserver is ready", func() error {
			for _, f := range flows {
				f.exchange() // while the pod is away, too
			}
			after = set.Pods()
			if now := after["echoserver-0"]; now.UID == before["echoserver-0"].UID || !ready(now) {
				return fmt.Errorf("it is %s", now.Status.Phase)
			}
			return nil
		})
		t.Kept(before, after)
		reply, before = t.reply(flows, reply), after
	}
	t.Step("all go on")
}

// A flow is a socket that is connected to a server: all its datagrams have the same addresses and
// ports.
type flow struct {
	net.Conn
	about string
}

// flow opens a flow from a network namespace, and closes it when the scenario ends.
func (t *Test) flow(ns, ip string, port int) flow {
	conn, err := inspect.DialIn(ns)(t.Ctx, "udp", net.JoinHostPort(ip, fmt.Sprint(port)))
	t.Must(err)
	t.Cleanup(func() { conn.Close() })
	return flow{conn, fmt.Sprintf("from %s to %s port %d", ns, ip, port)}
}

// exchange sends a datagram, and returns the reply. While the server is away it may return what an
// ICMP message says.
func (f flow) exchange() (string, error) {
	f.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := f.Write([]byte("?")); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	n, err := f.Read(buf)
	return string(buf[:n]), err
}

// reply waits until every flow gets another reply than that of the former server, and returns it.
func (t *Test) reply(flows []flow, former string) (reply string) {
	t.Eventually("every flow gets replies", func() error {
		var errs []error
		for _, f := range flows {
			got, err := f.exchange()
			if err == nil && got == former {
				err = errors.New("the reply is the former server's")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.about, err))
			}
			reply = got
		}
		return errors.Join(errs...)
	})
	return reply
}
