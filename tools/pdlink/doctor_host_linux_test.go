package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestWireless: an interface is told by what the kernel has of it, not by its name.
func TestWireless(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"eth7/phy80211", "ath0/wireless", "wlan0/queues", "eno1/statistics"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for iface, want := range map[string]bool{"eth7": true, "ath0": true, "wlan0": false, "eno1": false, "gone": false} {
		if got := wirelessIn(dir, iface); got != want {
			t.Errorf("%s: %v, want %v", iface, got, want)
		}
	}
	if wireless("lo") {
		t.Error("the loopback has a radio")
	}
}

// TestPathMTU: of each family that this host has, the loopback's is the interface's.
func TestPathMTU(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := lo.Addrs()
	if err != nil || len(addrs) == 0 {
		t.Fatalf("%v: %v", addrs, err)
	}
	for _, a := range addrs {
		ip, _, err := net.ParseCIDR(a.String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("udp", net.JoinHostPort(ip.String(), "9"))
		if err != nil {
			t.Fatal(err)
		}
		want := lo.MTU
		if ip.To4() != nil {
			want = min(want, 1<<16-1) // of the longest packet
		}
		if got := pathMTU(c); got != want {
			t.Errorf("%s: %d, want %d", ip, got, want)
		}
		c.Close()
	}
}
