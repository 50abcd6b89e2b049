#!/usr/bin/env bash
# Two network namespaces on this host, joined by a cable (a veth pair): a test bed that nothing outside can reach.
#
#   netns.sh up             make it; congestion control is cubic for whatever runs there
#   netns.sh shape RATE     10gbit, 2500mbit, 1gbit or none: a token bucket at both ends
#   netns.sh mtu BYTES
#   netns.sh show
#   netns.sh down           remove it and all that is in it
#
# Root. PDPERF_NS names the two namespaces, NAME-a and NAME-b; default pdperf. The ends are 10.231.7.1 and .2. They are also
# 127.77.0.1 and .2: loopback addresses that are routed over the cable, for programs that talk to strangers over loopback
# only. Each namespace has a loopback device of its own, with 127.0.0.1.
set -euo pipefail

name=${PDPERF_NS:-pdperf}
a=$name-a b=$name-b
dev_a=${name}0 dev_b=${name}1

# each COMMAND...: run a function for both ends, with namespace, device and last byte of the address.
each() {
	"$@" "$a" "$dev_a" 1
	"$@" "$b" "$dev_b" 2
}

configure() {
	local ns=$1 dev=$2 n=$3
	ip netns exec "$ns" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet'
	ip -n "$ns" link set lo up
	# The rest of 127.0.0.0/8 must not be local to both ends.
	ip -n "$ns" addr del 127.0.0.1/8 dev lo
	ip -n "$ns" addr add 127.0.0.1/32 dev lo
	ip -n "$ns" addr add "10.231.7.$n/24" dev "$dev"
	ip -n "$ns" addr add "127.77.0.$n/24" dev "$dev"
	ip -n "$ns" link set "$dev" up
	# By route, which works where a namespace may not set the sysctl, and for programs that cannot choose.
	ip -n "$ns" route replace 10.231.7.0/24 dev "$dev" proto kernel scope link src "10.231.7.$n" congctl cubic
	ip -n "$ns" route replace 127.77.0.0/24 dev "$dev" proto kernel scope link src "127.77.0.$n" congctl cubic
	ip -n "$ns" route replace local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1 table local congctl cubic
}

shape() {
	local rate=$1 ns=$2 dev=$3
	ip netns exec "$ns" tc qdisc del dev "$dev" root 2>/dev/null || true
	# Buckets of about a millisecond, and queues of a few: enough for segments of 64 KiB, too little to hide the rate.
	case $rate in
	none) ;;
	10gbit) ip netns exec "$ns" tc qdisc add dev "$dev" root tbf rate 10gbit burst 1mb latency 5ms ;;
	2500mbit) ip netns exec "$ns" tc qdisc add dev "$dev" root tbf rate 2500mbit burst 256kb latency 10ms ;;
	1gbit) ip netns exec "$ns" tc qdisc add dev "$dev" root tbf rate 1gbit burst 128kb latency 20ms ;;
	*) echo "netns.sh: rate $rate: want 10gbit, 2500mbit, 1gbit or none" >&2 && return 2 ;;
	esac
}

mtu() { ip -n "$2" link set "$3" mtu "$1"; }

show() {
	ip -n "$1" -br addr
	ip netns exec "$1" tc -s qdisc show dev "$2"
}

down() {
	ip netns del "$a" 2>/dev/null || true
	ip netns del "$b" 2>/dev/null || true
}

case ${1:-} in
up)
	down
	trap 'down' ERR
	ip netns add "$a"
	ip netns add "$b"
	ip link add "$dev_a" netns "$a" type veth peer name "$dev_b" netns "$b"
	each configure
	;;
shape) each shape "${2:-none}" ;;
mtu) each mtu "${2:?bytes}" ;;
show) each show ;;
down) down ;;
*)
	sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
	;;
esac
