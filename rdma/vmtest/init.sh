#!/bin/dash
# First program of the machine: sets two RDMA devices up, runs the job, says how it ended, and stops the machine.
export PATH=/bin:/sbin:/usr/bin HOME=/root TERM=dumb
/bin/busybox --install -s /sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
for pair in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf "/proc/self/${pair#*:}" "/dev/${pair%%:*}"; done

# load LIST: insert the modules of a list, which has dependencies first.
load() {
	while read -r module; do
		insmod "/modules/$module" || echo "init: module $module failed"
	done <"/modules/$1.list"
}

# wait_for COMMAND...: until it succeeds, at most ten seconds.
wait_for() {
	tries=0
	until "$@" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 500 ] || return 1
		usleep 20000
	done
}

# stop STATUS: report it and end the emulator, which has all output by then.
stop() {
	echo "rc $1" >&9
	printf '\000' | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
	poweroff -f
}

load base
# By number: names come later than the devices.
wait_for test -e /dev/vport0p3 || poweroff -f
exec </dev/null >/dev/vport0p1 2>/dev/vport0p2
exec 9>/dev/vport0p3
ulimit -l unlimited
ulimit -n 65536
ip link set lo up
load rdma

# Both ends of a veth pair are in one name space, as Soft-RoCE of this kernel looks routes up in the first one only. Rules
# keep the kernel from delivering between its own two addresses by itself: the local table comes after those that send over
# the wire, but for what came in over it.
A=10.77.0.1 B=10.77.0.2
mtu=9000
for word in $(cat /proc/cmdline); do case $word in vmtest.mtu=*) mtu=${word#*=} ;; esac; done
ip -batch - <<-END
	link add rx0 mtu $mtu address 02:00:00:77:00:01 type veth peer name rx1 mtu $mtu address 02:00:00:77:00:02
	link set rx0 up
	link set rx1 up
	address add $A/24 dev rx0
	address add $B/24 dev rx1
	rule add pref 10 iif rx0 lookup local
	rule add pref 11 iif rx1 lookup local
	rule add pref 20 to $A lookup 101
	rule add pref 21 to $B lookup 102
	rule add pref 30 lookup local
	rule del pref 0
	route add $A dev rx1 src $B table 101
	route add $B dev rx0 src $A table 102
	neigh add $B lladdr 02:00:00:77:00:02 dev rx0 nud permanent
	neigh add $A lladdr 02:00:00:77:00:01 dev rx1 nud permanent
END
for d in rx0 rx1; do
	echo 1 >/proc/sys/net/ipv4/conf/$d/accept_local
	echo 0 >/proc/sys/net/ipv4/conf/$d/rp_filter
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
rdma link add rxe0 type rxe netdev rx0
rdma link add rxe1 type rxe netdev rx1
# The table of GIDs fills in the background.
for d in rxe0 rxe1; do
	# shellcheck disable=SC2016 # for the inner shell
	wait_for sh -c 'grep -qs 0000:0000:0000:0000:0000:ffff: /sys/class/infiniband/$0/ports/1/gids/*' $d || echo "init: $d has no GID" >&2
done

export PDLINK_VM=1 RDMA_A=rxe0 RDMA_B=rxe1 RDMA_IP_A=$A RDMA_IP_B=$B RDMA_NET_A=rx0 RDMA_NET_B=rx1
cd /job || stop 125
echo run >&9
sh /job/.vmtest 9>&-
stop $?
