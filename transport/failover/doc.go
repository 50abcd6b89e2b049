// Package failover keeps a way to a peer open: it dials the peer's routes in
// order of preference, waits between attempts, leaves a route that keeps failing
// for the next one and comes back to it, and says when it is time to give up. It
// knows links by their contract only, and nothing of transfers: whoever has one
// tells what became of it by [Dialer.Progress] and [Dialer.Lost].
package failover
