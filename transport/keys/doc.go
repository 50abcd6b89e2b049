// Package keys says who the two ends of a connection are. Each host has one
// Ed25519 key pair, its identity, in a file, and a file of peers: the public
// keys that it talks to, with the names that it gives them. There is no
// authority and no host name: who holds a pinned key is the peer, whatever its
// address. PROTOCOL.md of package wire, section 10.1, is what the other end sees.
//
// Both files are in one directory, DefaultDir unless the user says another:
//
//	identity   the private key: PKCS #8 in PEM, mode 0600
//	peers      one "NAME PUBLIC-KEY" a line; # begins a comment
//	.lock      held while one of them changes
//
// Both are refused when somebody else could have written them, the private key
// also when somebody else could read it. On systems without such modes the
// directory has to be protected by other means.
//
// A [Store] is the live view of a directory for a process that has connections:
// it makes the TLS configurations, and when a peer leaves the file it ends that
// peer's admissions within seconds. Where the file is in doubt nobody is a peer: a
// name or a key that two lines have belongs to neither, a file that others can
// write or that this process may not read has none, and one that cannot be read
// for other reasons has none after a while.
package keys
