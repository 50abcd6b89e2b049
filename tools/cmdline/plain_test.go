package cmdline

import (
	"errors"
	"testing"
)

func TestErrorsArePlain(t *testing.T) {
	for raw, want := range map[string]string{
		"tcp to 127.0.0.1:1: tcp: dial 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused: nobody listens there":                                      "tcp to 127.0.0.1:1: connect: connection refused: nobody listens there",
		"failover: transport: no way to the peer: no progress for 1s: tcp to [::1]:7: tcp: dial [::1]:7: handshake: transport: connection lost: the peer hung up": "no way to the peer: no progress for 1s: tcp to [::1]:7: handshake: connection lost: the peer hung up",
		"tcp to mac:7: tcp: dial mac:7: dial tcp 10.0.0.5:7: connect: connection refused\ndial tcp 10.0.0.6:7: connect: no route to host":                         "tcp to mac:7: 10.0.0.5:7: connect: connection refused\n10.0.0.6:7: connect: no route to host",
		"unix to /run/x.sock: unix: dial /run/x.sock: dial unix /run/x.sock: connect: no such file or directory":                                                  "unix to /run/x.sock: connect: no such file or directory",
		"read control prefix: read tcp 127.0.0.1:46148->127.0.0.1:39391: read: connection reset by peer":                                                          "read control prefix: read: connection reset by peer",
		"keys: bad key: it is mistyped":                                            "bad key: it is mistyped",
		"transport: connection lost: keys: unsafe permissions: /tmp has mode 1777": "connection lost: unsafe permissions: /tmp has mode 1777",
		"--keys: no such directory, in keys: that is meant":                        "--keys: no such directory, in keys: that is meant",
		"case bridge: it is a file":                                                "case bridge: it is a file",
		"":                                                                         "",
	} {
		if got := Plain(errors.New(raw)); got != want {
			t.Errorf("%q\n  became %q\n  want   %q", raw, got, want)
		}
	}
}
