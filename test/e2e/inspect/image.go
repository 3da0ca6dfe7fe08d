package inspect

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PullImage has the runtime of a node pull an image.
func PullImage(ctx context.Context, root, image string) error {
	conn := dial(root)
	defer conn.Close()
	_, err := cri.NewImageServiceClient(conn).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	return err
}

// RemoveImage removes an image from the runtime of a node.
func RemoveImage(ctx context.Context, root, image string) error {
	conn := dial(root)
	defer conn.Close()
	_, err := cri.NewImageServiceClient(conn).RemoveImage(ctx,
		&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}})
	return err
}
