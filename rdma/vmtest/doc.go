// Command vmtest runs a program in a throw-away virtual machine that has two RDMA
// devices: Soft-RoCE over the two ends of a veth pair, on Debian's own kernel and
// libraries. No RDMA, no KVM and no privilege is needed outside; nothing leaves the
// host, since the machine has no network but that pair.
//
//	vmtest image                         prepare what run boots, and print where it lies
//	vmtest headers                       fetch the C headers of verbs, and print where they lie
//	vmtest run [flags] -- COMMAND...     run a command in the machine
//	vmtest exec [flags] BINARY [ARG...]  the same as a value of go test -exec
//
// Output and exit status are the command's; 124 says that its time was up and 125
// that the machine came to no exit status. The command finds in its environment
// PDLINK_VM=1, the devices RDMA_A and RDMA_B, their addresses RDMA_IP_A and
// RDMA_IP_B, and their interfaces RDMA_NET_A and RDMA_NET_B. It is root there, and
// its directory has BINARY, testdata and what -add named. In the path are ip, tc,
// rdma, ss, ibv_devinfo, ibv_rc_pingpong and perftest's ib_* programs; busybox has
// the rest.
//
// With -steady the machine has one processor, and its clock counts instructions in
// place of looking at the host's. Time limits and figures in it come out the same on a
// host that does other things too, and a machine that waits takes no time. What
// emulated memory costs and what two processors do to each other does not show there.
//
// Packages come from Debian through apt and lie below the directory that -cache
// names, together with the image. Nothing is installed: where qemu-system-x86_64 or xz
// is missing the error says which packages have them.
package main
