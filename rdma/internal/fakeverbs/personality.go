package fakeverbs

import "pdlink/rdma/internal/verbs"

// Personality is what a provider can do. The zero value of a limit means none.
type Personality struct {
	Class verbs.Class

	RC, UC bool // kinds of queue pairs

	// Counts and sizes.
	MaxQPWR   int   // work requests of one queue
	MaxCQE    int   // entries of a completion queue
	MaxMR     int   // regions of an opened device
	MaxMRSize int   // bytes of one
	MaxPinned int64 // bytes of all regions of an opened device
	MaxQP     int   // queue pairs of the device, however often it is opened
	MaxRead   int   // READs under way
	MaxInline int   // bytes; 0: no inline
	Segments  int   // of a send request
	GIDs      int   // GIDs before the first usable one

	Access     verbs.Access // that regions may have
	InitAccess verbs.Access // that a queue pair may have
	AlignIOVA  uint64       // an MR's address and the device's agree modulo this; informative

	NoChannel   bool // no completion channels
	MustSignal  bool // unsignalled requests are refused
	NoError     bool // a queue pair cannot be moved to the error state
	NoEvents    bool // Event is not supported
	PortEvents  bool // only events of ports
	NoImmediate bool // WRITE with immediate is refused by the sender
	BadImm      bool // receiving a WRITE with immediate kills the completion queue
	PlainImm    bool // its completion looks like that of a plain receive
	NoWrite     bool // a WRITE ends in the next receive, as a SEND
	NoRead      bool
	ExactRead   bool   // the counts of READs must be exactly MaxRead
	GIDZero     bool   // only GID index 0
	Frames      uint32 // SENDs and their receives are equal multiples of it; 0: any
	SlowClose   bool   // objects are busy while work is outstanding

	MTU verbs.MTU // of the port
}

// remoteAccess is what every provider of remote operations takes.
const remoteAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead

// MLX5 is ConnectX through rdma-core: everything works.
func MLX5() Personality {
	return Personality{
		Class: verbs.ClassMellanox, RC: true, UC: true,
		MaxQPWR: 8192, MaxCQE: 1 << 20, MaxMR: 1 << 20, MaxQP: 1 << 16, MaxRead: 16, MaxInline: 512, Segments: 2, GIDs: 3,
		Access: remoteAccess, InitAccess: remoteAccess, MTU: verbs.MTU4096,
	}
}

// MCDMA is ConnectX on a Mac through the kernel extension of that name.
func MCDMA() Personality {
	return Personality{
		Class: verbs.ClassMCDMA, RC: true,
		MaxQPWR: 31, MaxCQE: 31, MaxMR: 64, MaxMRSize: 4 << 20, MaxPinned: 128 << 20, MaxQP: 256, MaxRead: 1, Segments: 2,
		Access: remoteAccess, InitAccess: verbs.AccessRemoteWrite | verbs.AccessRemoteRead, AlignIOVA: 16 << 10,
		NoChannel: true, MustSignal: true, NoError: true, PortEvents: true, BadImm: true, ExactRead: true, GIDZero: true,
		SlowClose: true, MTU: verbs.MTU4096,
	}
}

// MelonDMA is ConnectX-4 Lx on a Mac through DriverKit.
func MelonDMA() Personality {
	return Personality{
		Class: verbs.ClassMelonDMA, RC: true,
		MaxQPWR: 4096, MaxCQE: 2048, MaxMR: 128, MaxPinned: 512 << 20, MaxQP: 64, MaxRead: 16, MaxInline: 512, Segments: 2,
		Access: remoteAccess, InitAccess: remoteAccess, NoError: true, PlainImm: true, GIDZero: true, MTU: verbs.MTU1024,
	}
}

// Apple is RDMA over Thunderbolt.
func Apple() Personality {
	return Personality{
		Class: verbs.ClassApple, UC: true,
		MaxQPWR: 4095, MaxCQE: 4095, MaxMR: 100, MaxMRSize: 0xfa0000, MaxQP: 10, Segments: 1, GIDs: 1,
		Access: remoteAccess, InitAccess: remoteAccess,
		NoChannel: true, MustSignal: true, NoError: true, NoEvents: true, NoImmediate: true, NoWrite: true, NoRead: true,
		Frames: 4 << 10, MTU: verbs.MTU1024,
	}
}
