package keys

import "time"

// Names of the files in a directory of keys.
const (
	IdentityFile = "identity"
	PeersFile    = "peers"
	NameFile     = "name"  // what other hosts are to call this one
	lockFile     = ".lock" // of mode 0600: who cannot open it cannot hold it
	newPrefix    = ".new-" // of a file that is being written
)

// ALPN is the protocol that both ends name in the TLS handshake. It keeps a
// pinned key from being used for anything else that speaks TLS.
const ALPN = "pdlink/1"

const (
	// maxIdentity bounds the identity file, in bytes: the key takes 119.
	maxIdentity = 4 << 10

	// maxPeers bounds the peers file, in bytes: some 10,000 peers.
	maxPeers = 1 << 20

	// maxRevoked bounds how many notes of revoked keys stay in the peers file, some 13
	// KiB. They are for hosts that still dial because nobody told them.
	maxRevoked = 100

	// maxNameFile bounds the file of this host's own name, in bytes.
	maxNameFile = 256

	// maxName bounds a peer's name, in bytes: as long as a label of a host name.
	maxName = 63

	// maxQuoted bounds how much of a text that the user gave in a key's or a name's
	// place a message repeats, in bytes: a private key may have been pasted there,
	// and the first 21 letters of its file's body are the same in every one.
	maxQuoted = 20

	// maxTold bounds how many wrong lines of a peers file an error tells of. A
	// file of rubbish has half a million.
	maxTold = 5

	// lockWait bounds the wait for another change of the same directory, which
	// takes milliseconds, and lockPause is between two attempts.
	lockWait  = 5 * time.Second
	lockPause = 20 * time.Millisecond

	// blindLimit is how long a Store goes on with the peers that it knows while
	// it cannot read the file: longer than a file server's restart of moments,
	// and short, because whoever was revoked meanwhile is still connected.
	blindLimit = 10 * time.Second

	// blindRepeat is how often it says again that it cannot.
	blindRepeat = time.Minute

	// defaultPoll is how often a Store looks at the peers file. A change counts
	// when two looks have seen it, so it takes effect after one to two seconds;
	// each look reads a small file.
	defaultPoll = time.Second
)
