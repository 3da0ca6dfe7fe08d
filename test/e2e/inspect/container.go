package inspect

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is a running container of a pod.
type Container struct {
	ID  string
	PID int // of its first process, in the node's PID namespace
}

// Containers returns the running containers of a pod, from the runtime of the node with the file
// system root.
func Containers(ctx context.Context, root, podUID string) ([]Container, error) {
	conn, err := dial(root)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	list, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": podUID},
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
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
		found = append(found, Container{ID: item.Id, PID: info.PID})
	}
	return found, nil
}
