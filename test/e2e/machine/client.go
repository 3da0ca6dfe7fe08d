package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// A Client sends requests to a machine.
type Client struct{ Socket string }

// Call sends a request, and waits for its reply until ctx is done.
func (c Client) Call(ctx context.Context, r Request) (Reply, error) {
	var reply Reply
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return reply, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return reply, err
	}
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		return reply, errors.New(reply.Error)
	}
	return reply, nil
}

// Start starts a service.
func (c Client) Start(ctx context.Context, s Start) error {
	_, err := c.Call(ctx, Request{Start: &s})
	return err
}

// Stop terminates a service, and kills it after ten seconds.
func (c Client) Stop(ctx context.Context, name string) error {
	if c.signal(ctx, name, syscall.SIGTERM, 10*time.Second) == nil {
		return nil
	}
	return c.Kill(ctx, name)
}

// Kill kills a service.
func (c Client) Kill(ctx context.Context, name string) error {
	return c.signal(ctx, name, syscall.SIGKILL, 10*time.Second)
}

func (c Client) signal(ctx context.Context, name string, sig syscall.Signal, wait time.Duration) error {
	_, err := c.Call(ctx, Request{Signal: &Signal{Name: name, Number: int(sig), Wait: wait}})
	return err
}

// Run runs a command in the machine, and returns its standard output. A non-zero exit code is an
// error with the output.
func (c Client) Run(ctx context.Context, argv ...string) ([]byte, error) {
	reply, err := c.Call(ctx, Request{Exec: &Exec{Argv: argv}})
	if err != nil {
		return nil, err
	}
	if reply.Exit != 0 {
		return reply.Stdout, fmt.Errorf("%s: exit code %d: %s",
			strings.Join(argv, " "), reply.Exit, strings.TrimSpace(string(reply.Stdout)+string(reply.Stderr)))
	}
	return reply.Stdout, nil
}
