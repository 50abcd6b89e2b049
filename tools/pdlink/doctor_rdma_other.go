//go:build !linux

package main

import (
	"context"

	"pdlink/rdma"
)

// What to do where there is no Linux; RDMA there is is a Mac's.
const (
	libraryCure = "a Mac has Apple's librdma from macOS 26.2 on; other systems have no RDMA here: use tcp://; a program built with the tag nordma has none anywhere"
	driverCure  = "Thunderbolt: rdma_ctl enable in Recovery; a ConnectX: install MCDMA for this very build of macOS, and allow its extension; without either use tcp://"
	openCure    = "a driver of MCDMA takes the builds of macOS that it names: look whether it knows this one"

	interfaceHint = ""
)

// netdevs are the network interfaces of a port: not known here.
func (rdmaHost) netdevs(rdma.Device, rdma.Port) []string { return nil }

// lookFiles looks at the devices' files: there are none here.
func (d *rdmaDoctor) lookFiles(context.Context) []finding { return nil }

// lookSlot looks at how cards are connected: not known here.
func (d *rdmaDoctor) lookSlot(context.Context) []finding { return nil }

// lookGPU looks at the GPU's memory: a Mac's is the host's.
func (d *rdmaDoctor) lookGPU(context.Context) []finding { return nil }
