#!/usr/bin/env bash
# What the block store costs a transfer: 200 blocks of 20 MB in the order in which an engine makes them (four open, layer by
# layer), from `pdlink replay --synthetic` to `pdlink decode`, side by side with the same transfer into nothing and, where the
# link is faster than the disk, with fio writing as many bytes in sequence.
#
#   store.sh PDLINK DIR LINK [ROUNDS [BLOCKS]]
#
# LINK is a rate of netns.sh (10gbit: both ends in namespaces of their own; root), or lo for this host's loopback. DIR is on
# the disk in question and gets a directory that is removed. Prints each round and the medians.
set -euo pipefail

pdlink=$(realpath "${1:?pdlink}") link=${3:?lo or a rate of netns.sh} rounds=${4:-9} blocks=${5:-200}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d "${2:?directory}/pdlink-store-XXXXXX")
export PDPERF_NS=pds$$
cleanup() {
	rm -rf "$work"
	[[ $link == lo ]] || bash "$here/netns.sh" down
}
trap cleanup EXIT

receiver=() sender=() host=127.0.0.1
if [[ $link != lo ]]; then
	bash "$here/netns.sh" up
	bash "$here/netns.sh" shape "$link"
	receiver=(ip netns exec "$PDPERF_NS-b") sender=(ip netns exec "$PDPERF_NS-a") host=127.77.0.2
fi

# field NAME: a number of the transfer's event.
field() { sed -n "/\"event\":\"transfer\"/s/.*\"$1\":\([0-9.e+]*\).*/\1/p" "$work/events"; }

# transfer SEED FLAGS...: GB/s of one transfer, from its first byte to the last block visible.
transfer() {
	local seed=$1 port=$((20000 + RANDOM % 10000))
	shift
	rm -rf "$work/store"
	sync -f "$work"
	: >"$work/events"
	"${receiver[@]}" "$pdlink" decode --listen "tcp://$host:$port" --once --json "$@" >"$work/events" 2>"$work/errors" &
	local pid=$!
	until grep -q '"listening"' "$work/events"; do
		kill -0 "$pid" 2>/dev/null || { cat "$work/errors" >&2 && exit 1; }
		sleep 0.05
	done
	"${sender[@]}" "$pdlink" replay --synthetic deepseek-v4-flash --tokens $(((blocks + 1) * 2048)) --seed "$seed" \
		--to "tcp://$host:$port" --json >"$work/sent"
	wait "$pid"
	awk -v b="$(field bytes)" -v s="$(field seconds)" 'BEGIN { printf "%.4f\n", b / s / 1e9 }'
}

# raw: GB/s of fio, one file of as many bytes, past the page cache and durable at the end.
raw() {
	rm -rf "$work/store" "$work/raw"
	sync -f "$work"
	fio --name=raw --filename="$work/raw" --rw=write --bs=16M --direct=1 --ioengine=psync --size=$((blocks * 20))M \
		--end_fsync=1 --output-format=json >"$work/fio"
	rm "$work/raw"
	awk -F'[:,]' '/"write" :/ { w = 1 } w && /"io_bytes"/ { b = $2 } w && /"runtime"/ { printf "%.4f\n", b / $2 / 1e6; exit }' "$work/fio"
}

median() { sort -g | awk '{ v[NR] = $1 } END { printf "%.3f (%.3f to %.3f)", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[1], v[NR] }'; }

measures=(store discard)
if [[ $link == lo ]]; then measures+=(fio); fi
for ((r = 1; r <= rounds; r++)); do
	for ((m = 0; m < ${#measures[@]}; m++)); do # another one is first in every round
		what=${measures[(m + r) % ${#measures[@]}]}
		case $what in
		store) value=$(transfer "$r" --store "$work/store") ;;
		discard) value=$(transfer "$r" --discard) ;;
		fio) value=$(raw) ;;
		esac
		echo "$value" >>"$work/$what.list"
		echo "round $r: $what $value GB/s"
	done
done
for what in "${measures[@]}"; do
	echo "$what: $(median <"$work/$what.list") GB/s"
	[[ $what == store ]] || echo "store / $what: $(paste "$work/store.list" "$work/$what.list" | awk '{ print $1 / $2 }' | median)"
done
