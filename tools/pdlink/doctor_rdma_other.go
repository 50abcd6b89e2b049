//go:build !linux

package main

import (
	"context"
	"fmt"

	"pdlink/rdma"
)

// What to do where there is no Linux; RDMA there is is a Mac's.
const (
	libraryCure = "a Mac has Apple's librdma from macOS 26.2 on; other systems have no RDMA here: use tcp://; a program built with the tag nordma has none anywhere"
	driverCure  = "Thunderbolt: rdma_ctl enable in Recovery; a ConnectX: install MCDMA for this very build of macOS, and allow its extension; without either use tcp://"
	openCure    = "a driver of MCDMA takes the builds of macOS that it names: look whether it knows this one"
	memoryCure  = "end other programs that use the device, since drivers register some 128 MiB in all; raise the limit of locked memory: ulimit -l unlimited"
	countsCure  = "run it as a user who may read them"
	deviceNames = "`pdlink doctor rdma` lists their names, such as rdma_mcrdma0"

	// Of interfaces, whose names are put in.
	addressCommand = "sudo ifconfig %s inet … alias"
	interfaceHint  = " or set it up (`ifconfig` lists them; that of rdma_mcrdma0 is mcrdma0)"
	interfacesHint = "`ifconfig` lists all; that of rdma_mcrdma0 is mcrdma0"
	mtuCommand     = "sudo ifconfig %s mtu 9000"

	tellsNeighbours = false // rdma.Neighbour knows none
)

// neighbourCommand makes a fixed neighbour entry.
func neighbourCommand(peer, iface string) string {
	return fmt.Sprintf("sudo ndp -s %s%%%s MAC, with the peer's MAC, again after each start (`ndp -an` lists those that there are)", peer, iface)
}

// netdevs are the network interfaces of a port: not known here.
func (rdmaHost) netdevs(rdma.Device, rdma.Port) []string { return nil }

// lookFiles looks at the devices' files: there are none here.
func (d *rdmaDoctor) lookFiles(context.Context) []finding { return nil }

// lookSlot looks at how cards are connected: not known here.
func (d *rdmaDoctor) lookSlot(context.Context) []finding { return nil }

// lookGPU looks at the GPU's memory: a Mac's is the host's.
func (d *rdmaDoctor) lookGPU(context.Context) []finding { return nil }
