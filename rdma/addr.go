package rdma

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Addr is an address of the link as its URLs have it behind "rdma://":
//
//	host:port?device=NAME[:PORT]&fallback=yes|no
//
// It is comparable.
type Addr struct {
	Host   string // "host:port", of the control connection; not looked at
	Device string // Options.Device: each end names its own
	Only   bool   // fallback=no: who listens refuses peers without RDMA
	Falls  bool   // fallback=yes: who listens takes them, as where nothing is said
}

// Parameters of an address.
const (
	paramDevice   = "device"
	paramFallback = "fallback"

	wantParams = paramDevice + "=NAME[:PORT] and, for the end that listens, " + paramFallback + "=yes or " + paramFallback + "=no"
)

// ParseAddr reads an address. A slash behind host:port does not matter. A parameter
// that is unknown, repeated or without a sound value is refused by an error that names
// the right ones.
func ParseAddr(text string) (Addr, error) {
	host, query, _ := strings.Cut(text, "?")
	a := Addr{Host: strings.TrimSuffix(host, "/")}
	q, err := url.ParseQuery(query)
	if err != nil {
		return a, fmt.Errorf("parameters %.60q: %w", query, err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		values := q[name]
		if len(values) > 1 {
			return a, fmt.Errorf("parameter %.60q is there %d times: want each once, %s", name, len(values), wantParams)
		}
		if err := a.take(name, values[0]); err != nil {
			return a, err
		}
	}
	return a, nil
}

// take takes one parameter.
func (a *Addr) take(name, value string) error {
	switch name {
	case paramDevice:
		if device, _, err := ParseDevice(value); err != nil || device == "" {
			return fmt.Errorf("parameter %s is %.60q: want %[1]s=NAME or %[1]s=NAME:PORT, names look like mlx5_0 (Linux) or rdma_mcrdma0 (a Mac)", name, value)
		}
		a.Device = value
	case paramFallback:
		if value != "yes" && value != "no" {
			return fmt.Errorf("parameter %s is %.60q: want %[1]s=yes or %[1]s=no", name, value)
		}
		a.Only, a.Falls = value == "no", value == "yes"
	default:
		return fmt.Errorf("parameter %.60q is unknown: want %s", name, wantParams)
	}
	return nil
}

// Dials returns nil where the end that dials may have the address: what is for the end
// that listens has no effect there.
func (a Addr) Dials() error {
	if a.Only || a.Falls {
		return fmt.Errorf("parameter %s is for the end that listens: the end that dials has %s=NAME[:PORT] only, and falls back to no other address than it is given",
			paramFallback, paramDevice)
	}
	return nil
}

// String is the address as ParseAddr reads it.
func (a Addr) String() string {
	q := url.Values{}
	if a.Device != "" {
		q.Set(paramDevice, a.Device)
	}
	switch {
	case a.Only:
		q.Set(paramFallback, "no")
	case a.Falls:
		q.Set(paramFallback, "yes")
	}
	if len(q) == 0 {
		return a.Host
	}
	return a.Host + "?" + strings.ReplaceAll(q.Encode(), "%3A", ":")
}
