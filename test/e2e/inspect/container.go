package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is a running container of a pod.
type Container struct {
	ID     string
	PID    int    // of its first process, in the node's PID namespace
	Parent string // the pid of that process's parent: containerd's shim, or conmon
}

// Containers returns the running containers of a pod, or of all pods for "", from the runtime of
// the node with the file system root.
func Containers(ctx context.Context, root, podUID string) ([]Container, error) {
	conn := dial(root)
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	filter := &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}
	if podUID != "" {
		filter.LabelSelector = map[string]string{"io.kubernetes.pod.uid": podUID}
	}
	list, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	var found []Container
	for _, item := range list.Containers {
		reply, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: item.Id, Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue // ended since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", item.Id, err)
		}
		var info struct {
			PID int `json:"pid"`
		}
		if err := json.Unmarshal([]byte(reply.Info["info"]), &info); err != nil {
			return nil, fmt.Errorf("container %s: %w", item.Id, err)
		}
		found = append(found, Container{ID: item.Id, PID: info.PID, Parent: parent(root, info.PID)})
	}
	return found, nil
}

// parent returns the pid of a process's parent, "" if there is no such process.
func parent(root string, pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("%s/proc/%d/stat", root, pid))
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if err != nil || len(f) < 2 {
		return ""
	}
	return f[1]
}
