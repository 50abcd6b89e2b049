package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"pdlink/rdma"
)

// wantAim is what can be asked about.
const wantAim = "want an address or a network interface of this host, an address of its peer, or the URL of an rdma link: rdma://host:port"

// hostOf takes the host out of an address, or of the URL of an rdma link, whose device
// counts as that of --device. What is for the end that listens has no effect here, and is
// refused.
func (d *rdmaDoctor) hostOf(text string) (string, error) {
	if !strings.Contains(text, "://") {
		if bare := strings.Trim(text, "[]"); isHost(bare) {
			return bare, nil
		}
		text = schemeRDMA + "://" + text
	}
	u, err := parseLink(text)
	switch {
	case err != nil:
		return "", err
	case u.scheme != schemeRDMA:
		return "", fmt.Errorf("%q: %s", text, wantAim)
	case d.device != "" && u.device != "" && u.device != d.device:
		return "", fmt.Errorf("--device %s, and %s in the URL: name one device", d.device, u.device)
	case u.device != "":
		d.device = u.device
	}
	if err := u.rdma().Dials(); err != nil {
		return "", fmt.Errorf("%q: %w", text, err)
	}
	host, _, err := net.SplitHostPort(u.addr)
	return host, err
}

// isHost reports an IP address, or what may be the name of a host: nothing with a port,
// a path or parameters.
func isHost(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || !strings.ContainsAny(text, ":/?#@")
}

// refuse looks whether there is such a device and port, where one is named, and leaves
// nothing but it in the survey. A host whose devices cannot be listed is for the checks.
// Errors are the user's to mend, and name the devices or ports that there are.
func (d *rdmaDoctor) refuse(ctx context.Context) error {
	if d.device == "" {
		return nil
	}
	name, port, err := rdma.ParseDevice(d.device)
	if err != nil {
		return fmt.Errorf("--device %q: want NAME or NAME:PORT, "+deviceNames, d.device)
	}
	within(ctx, d, check[rdmaDoctor]{"library", 0, (*rdmaDoctor).lookLibrary}) // it is said when it is looked at
	s := &d.survey
	if len(s.Names) > 0 && !slices.Contains(s.Names, name) {
		return fmt.Errorf("--device %s: this host has no such device: name one of %s", d.device, listText(s.Names))
	}
	i := slices.IndexFunc(s.Devices, func(v rdma.Device) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	mine := s.Devices[i]
	if port > 0 && mine.Err == nil {
		has := func(p rdma.Port) bool { return p.Number == port }
		if !slices.ContainsFunc(mine.Ports, has) {
			return fmt.Errorf("--device %s: %s has no such port: %s", d.device, name, portsOf(mine))
		}
		mine.Ports = slices.DeleteFunc(slices.Clone(mine.Ports), func(p rdma.Port) bool { return !has(p) })
	}
	s.Devices = []rdma.Device{mine}
	return nil
}

// means reports that a device is looked at: all are where none is named.
func (d *rdmaDoctor) means(device string) bool {
	name, _, err := rdma.ParseDevice(d.device)
	return err != nil || name == "" || name == device
}

// portsOf says which ports a device has.
func portsOf(v rdma.Device) string {
	names := make([]string, 0, len(v.Ports))
	for _, p := range v.Ports {
		names = append(names, fmt.Sprintf("%s:%d", v.Name, p.Number))
	}
	return "name one of " + listText(names)
}
