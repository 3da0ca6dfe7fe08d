#!/bin/bash
# Saves what may explain a failed scenario in a directory: the logs of all services since it began, the API objects, and
# the state of each node. What cannot be read has the error in its place.
#
#   collect.sh DIRECTORY NAMESPACE SINCE RUN LEASECTL [NODE=PID]...     RUN has the logs and disks of the machines
set -u
dir=$1 namespace=$2 since=$3 run=$4 leasectl=$5
shift 5
mkdir -p "$dir/pods"
cd "$dir" || exit
touch -d "$since" .since

get() { kubectl --request-timeout=10s get "${@:2}" >"$1" 2>&1; }
get pods.txt pods -A -o wide
get objects.yaml all -n "$namespace" -o yaml
get system.yaml all -n leasehold-system -o yaml
get reservations.yaml ipr -A -o yaml
get webhooks.yaml mutatingwebhookconfigurations,validatingadmissionpolicies -o yaml
get system-events.txt events -n leasehold-system --sort-by=.lastTimestamp
get nodes.yaml nodes -o yaml
get events.txt events -n "$namespace" --sort-by=.lastTimestamp

# copy copies the end of a log that was written to since the scenario began.
copy() { [[ ! $1 -nt .since ]] || tail -c 4M "$1" >"$2"; }
for log in "$run"/logs/*.log; do
	copy "$log" "${log##*/}"
done
# The logs of containers are copied from the nodes' disks, because a node may not respond.
for log in "$run"/disks/*/var/log/pods/{"$namespace",leasehold-system}_*/*/*.log; do
	IFS=/ read -r node _ _ _ pod container restarts <<<"${log#"$run"/disks/}"
	IFS=_ read -r _ pod _ <<<"$pod"
	copy "$log" "pods/$node-$pod-$container-$restarts"
done

for node; do
	on_node() { nsenter --all --target "${node#*=}" -- "${@:2}" >"${node%=*}-$1" 2>&1; }
	on_node network.txt sh -c 'cat /etc/cni/net.d/*; ls -l /opt/cni/bin /run/netns /var/lib/cni/*/*
		for ns in /run/netns/*; do echo $ns; nsenter --net=$ns ip -br addr; done; ip -br addr; ip route'
	on_node leases.json "$leasectl" -o json list
	on_node history.txt "$leasectl" history
done
rm .since
