package keys

import "time"

// Names of the files in a directory of keys.
const (
	IdentityFile = "identity"
	PeersFile    = "peers"
)

// ALPN is the protocol that both ends name in the TLS handshake. It keeps a
// pinned key from being used for anything else that speaks TLS.
const ALPN = "pdlink/1"

const (
	// maxIdentity bounds the identity file, in bytes: the key takes 119.
	maxIdentity = 4 << 10

	// maxPeers bounds the peers file, in bytes: some 10,000 peers.
	maxPeers = 1 << 20

	// maxName bounds a peer's name, in bytes: as long as a label of a host name.
	maxName = 63

	// defaultPoll is how often a Store looks at the peers file. A change counts
	// when two looks have seen it, so it takes effect after one to two seconds;
	// each look reads a small file.
	defaultPoll = time.Second
)
