// Member runs a member of an etcd cluster whose members are configured by IP address. It receives
// the addresses once, by POST to :8080, and stores them with its data. The etcd binary is mounted
// at /etcd.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
)

const (
	members = "/data/members" // as etcd's --initial-cluster: etcd-0=http://10.0.0.1:2380,...
	etcd    = "/etcd/server"
)

func main() {
	list, err := os.ReadFile(members)
	if os.IsNotExist(err) {
		list, err = receiveMembers()
	}
	if err == nil {
		err = execEtcd(os.Getenv("POD_NAME"), os.Getenv("POD_IP"), string(list))
	}
	fmt.Fprintln(os.Stderr, "member:", err)
	os.Exit(1)
}

// receiveMembers waits for the list. It returns after the client has received the response.
func receiveMembers() ([]byte, error) {
	received := make(chan []byte, 1)
	mux := http.NewServeMux()
	server := &http.Server{Addr: ":8080", Handler: mux}
	mux.HandleFunc("POST /members", func(w http.ResponseWriter, r *http.Request) {
		list, err := io.ReadAll(r.Body)
		if err == nil {
			err = os.WriteFile(members, list, 0o600)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		select {
		case received <- list:
			go server.Shutdown(context.Background())
		default: // received before
		}
	})
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return nil, err
	}
	list := <-received
	return list, server.Shutdown(context.Background()) // waits until the response is sent
}

func execEtcd(name, ip, list string) error {
	peer, client := "http://"+ip+":2380", "http://"+ip+":2379"
	return syscall.Exec(etcd, []string{etcd, "--name=" + name, "--data-dir=/data/etcd", "--log-level=warn",
		"--unsafe-no-fsync", "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--initial-cluster=" + list, "--heartbeat-interval=200", "--election-timeout=2000"}, os.Environ())
}
