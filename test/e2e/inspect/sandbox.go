package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a pod sandbox of the container runtime.
type Sandbox struct {
	ID        string
	Namespace string
	Pod       string
	UID       string
	Ready     bool
	PID       int    // of the pause process, in the node's PID namespace; 0 if there is none
	NetNS     string // path on the host, empty if the namespace was removed
}

// The CRI sockets of runtimes. A node has one of them.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	CRIOSocket       = "/run/crio/crio.sock"
)

// dial returns a connection to the runtime of a node, which is made by the first request.
func dial(root string) *grpc.ClientConn {
	socket := ContainerdSocket
	if _, err := os.Stat(root + CRIOSocket); err == nil {
		socket = CRIOSocket
	}
	conn, err := grpc.NewClient("unix://"+root+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err) // the options are wrong
	}
	return conn
}

// Sandboxes returns the sandboxes in a namespace, from the runtime of the node with the file system
// root.
func Sandboxes(ctx context.Context, root, namespace string) ([]Sandbox, error) {
	conn := dial(root)
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	list, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	var found []Sandbox
	for _, item := range list.Items {
		if item.Metadata.Namespace != namespace {
			continue
		}
		s := Sandbox{ID: item.Id, Namespace: namespace, Pod: item.Metadata.Name, UID: item.Metadata.Uid,
			Ready: item.State == cri.PodSandboxState_SANDBOX_READY}
		err := details(ctx, client, root, &s)
		if status.Code(err) == codes.NotFound {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

// Stop has the runtime of a node stop a sandbox.
func Stop(ctx context.Context, root, id string) error {
	conn := dial(root)
	defer conn.Close()
	_, err := cri.NewRuntimeServiceClient(conn).StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// IsLoaded reports whether the containerd of a node has loaded a CNI network, from this text unless
// that is empty.
func IsLoaded(ctx context.Context, root, network, text string) (bool, error) {
	conn := dial(root)
	defer conn.Close()
	reply, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return false, err
	}
	var loaded struct {
		Networks []struct{ Config struct{ Name, Source string } }
	}
	err = json.Unmarshal([]byte(reply.Info["cniconfig"]), &loaded)
	for _, n := range loaded.Networks {
		if n.Config.Name == network && (text == "" || n.Config.Source == text) {
			return true, err
		}
	}
	return false, err
}

func details(ctx context.Context, client cri.RuntimeServiceClient, root string, s *Sandbox) error {
	reply, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.ID, Verbose: true})
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	var info struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(reply.Info["info"]), &info); err != nil {
		return fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	s.PID = info.PID
	for _, ns := range info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && ns.Path != "" {
			// /var/run is an absolute symbolic link, which would be resolved on the host.
			s.NetNS = filepath.Join(root, strings.Replace(ns.Path, "/var/run/", "/run/", 1))
		}
	}
	return nil
}
