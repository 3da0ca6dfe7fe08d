#!/bin/bash
# A machine of the test cluster: this shell is pid 1 of its own mount, PID, network, UTS, IPC and cgroup namespaces, and
# starts services. Killing it is like a power failure: the kernel kills all processes of the machine, which removes its
# mounts and its network. What is in DISK exists at the next start, /run and /dev/shm do not.
#
#   machine.sh NAME DISK BOOT_ID CGROUP     all namespaces but the last are new already
set -euo pipefail
name=$1 disk=$2 boot_id=$3 cgroup=$4

# join DIRECTORY TYPE CGROUP moves this shell into a cgroup of a mounted hierarchy.
join() {
	local dir=$1 part file
	for part in ${3//\// }; do
		mkdir -p "$dir/$part"
		for file in cpuset.cpus cpuset.mems; do # a new cgroup of version 1 has none
			[[ $2 != cgroup || ! -e $dir/$file ]] || cat "$dir/$file" >"$dir/$part/$file"
		done
		dir=$dir/$part
	done
	echo 0 >"$dir/cgroup.procs"
}

# cgroups prints the mounted hierarchies: directory, type, and the options that select it.
cgroups() {
	awk '{ for (i = 1; $i != "-"; i++); type = $(i + 1); options = "" }
		type !~ /^cgroup/ || seen[$5]++ { next }
		type == "cgroup" {
			n = split($(i + 3), all, ",")
			for (j = 1; j <= n; j++)
				if (all[j] !~ /^(rw|ro|xattr|noprefix|clone_children|release_agent=.*)$/)
					options = options (options == "" ? "" : ",") all[j]
			if (options ~ /^name=[^,]*$/)
				options = "none," options
		}
		{ print $5, type, options == "" ? "rw" : options }' /proc/self/mountinfo
}

if [[ ${5:-} != isolated ]]; then
	while read -r dir type _; do join "$dir" "$type" "$cgroup"; done < <(cgroups)
	exec unshare --cgroup bash "$0" "$@" isolated
fi

echo "$name" >/proc/sys/kernel/hostname
mount --make-rprivate /
mount --make-rshared / # among the machine's mount namespaces, as on a real node: pods may use mount propagation
mapfile -t hierarchies < <(cgroups)
for hierarchy in "${hierarchies[@]}"; do
	read -r dir type options <<<"$hierarchy"
	umount --lazy "$dir" # the kernel does not mount the same file system twice on one mount point
	mount -t "$type" -o "$options" "$type" "$dir"
	# Controllers can only be enabled for the children of a cgroup without processes.
	[[ $type != cgroup2 ]] || join "$dir" "$type" init
done
for dir in /opt /var/lib /var/log; do
	mkdir -p "$disk$dir"
	mount --bind "$disk$dir" "$dir"
done
mkdir -p "$disk/etc" "$disk/.work/etc"
mount -t overlay -o "lowerdir=/etc,upperdir=$disk/etc,workdir=$disk/.work/etc" overlay /etc
mount -t proc proc /proc
mount --bind "$boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
for file in /proc/sys/net/{ipv4/ip_forward,ipv6/conf/all/forwarding}; do
	[[ ! -e $file ]] || echo 1 >"$file" # a kernel may have no IPv6
done

# Who starts a service writes its script, and then its name into the pipe. As every pid 1, this shell reaps orphans.
mkdir /run/services
mkfifo /run/services.pipe
exec 3<>/run/services.pipe
touch /run/booted
while read -r service <&3; do
	setsid bash "/run/services/$service.sh" </dev/null &
done
