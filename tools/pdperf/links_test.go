package main

import "testing"

// TestSplitURL: what may be written of a URL and what is no link.
func TestSplitURL(t *testing.T) {
	for url, want := range map[string]struct{ scheme, addr string }{
		"tcp://h:1":           {"tcp", "h:1"},
		"TCP://h:1/":          {"tcp", "h:1"},
		"tcp://[fe80::1%a]:1": {"tcp", "[fe80::1%a]:1"},
		"Unix:///run/a/":      {"unix", "/run/a/"},
		"RDMA://h:1/":         {"rdma", "h:1"},
		"Mem://":              {"mem", ""},
	} {
		if scheme, addr, _, err := splitURL(url); err != nil || scheme != want.scheme || addr != want.addr || schemeOf(url) != scheme {
			t.Errorf("%s: %q, %q, %v", url, scheme, addr, err)
		}
	}
	for _, url := range []string{"h:1", "tcp://h:1/foo", "tcp://h:1?a=b", "tcp://u@h:1", "tcp://h:1#x", "tcp://h:1 "} {
		if scheme, addr, _, err := splitURL(url); err == nil {
			t.Errorf("%q is %q, %q", url, scheme, addr)
		}
		if addr, err := tcpAddress(url); err == nil && url != "h:1" {
			t.Errorf("%q is the address %q", url, addr)
		}
	}
	if addr, err := tcpAddress("TCP://h:1/"); err != nil || addr != "h:1" {
		t.Errorf("%q, %v", addr, err)
	}
}
