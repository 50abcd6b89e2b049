package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"pdlink/rdma"
)

// hostOf takes the host out of an address, or of the URL of a link, whose device counts as
// that of --device.
func (d *rdmaDoctor) hostOf(text string) (string, error) {
	scheme, addr, is := strings.Cut(text, "://")
	switch {
	case !is:
		addr = text
	case scheme != schemeRDMA && scheme != schemeTCP:
		return "", fmt.Errorf("%q: want an address, or the URL of a link: rdma://host:port", text)
	}
	a, err := rdma.ParseAddr(addr)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q: %w", text, err)
	case scheme == schemeTCP && is && a.String() != a.Host:
		return "", fmt.Errorf("%q: only rdma:// has parameters", text)
	case a.Device != "" && d.device != "" && a.Device != d.device:
		return "", fmt.Errorf("--device %s, and %s in the URL: name one device", d.device, a.Device)
	case a.Device != "":
		d.device = a.Device
	}
	host := a.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.Trim(host, "[]"), nil
}

// refuse looks whether there is such a device and port, where one is named, and leaves
// nothing but it in the survey. A host whose devices cannot be listed is for the checks.
// Errors are the user's to mend, and name the devices or ports that there are.
func (d *rdmaDoctor) refuse(ctx context.Context) error {
	if d.device == "" {
		return nil
	}
	name, text, hasPort := strings.Cut(d.device, ":")
	port := 0
	if hasPort {
		port, _ = strconv.Atoi(text) // 0 is no port
	}
	if name == "" || hasPort && port < 1 {
		return fmt.Errorf("--device %q: want NAME or NAME:PORT, names are those of `ls /sys/class/infiniband`", d.device)
	}
	within(ctx, d, check[rdmaDoctor]{"library", 0, (*rdmaDoctor).lookLibrary}) // it is said when it is looked at
	all := d.survey.Devices
	if len(all) == 0 {
		return nil
	}
	i := slices.IndexFunc(all, func(v rdma.Device) bool { return v.Name == name })
	if i < 0 {
		names := make([]string, 0, len(all))
		for _, v := range all {
			names = append(names, v.Name)
		}
		return fmt.Errorf("--device %s: this host has no such device: name one of %s", d.device, listText(names))
	}
	mine := all[i]
	if hasPort && mine.Err == nil {
		has := func(p rdma.Port) bool { return p.Number == port }
		if !slices.ContainsFunc(mine.Ports, has) {
			return fmt.Errorf("--device %s: %s has no such port: %s", d.device, name, portsOf(mine))
		}
		mine.Ports = slices.DeleteFunc(slices.Clone(mine.Ports), func(p rdma.Port) bool { return !has(p) })
	}
	d.survey.Devices = []rdma.Device{mine}
	return nil
}

// portsOf says which ports a device has.
func portsOf(v rdma.Device) string {
	names := make([]string, 0, len(v.Ports))
	for _, p := range v.Ports {
		names = append(names, fmt.Sprintf("%s:%d", v.Name, p.Number))
	}
	return "name one of " + listText(names)
}
