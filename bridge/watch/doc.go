// Package watch sees what a process of pdlink does, for people and for monitoring:
// transfers that are open and those that ended, connections, what each link carried,
// the store, requests of the front door.
//
// A [Watch] is told of things by whoever does them: it wraps links ([Watch.Link]) and
// targets ([Watch.Target]), and hears of verdicts and requests. It asks for nothing
// while nobody looks: what arrives is counted by the link itself and read when
// [Watch.State] is called, what is sent costs one addition a frame.
//
// What a peer says (its name, reasons) is bounded and made printable before it is kept.
// Subpackage metrics has the numbers for Prometheus, subpackage pages the HTTP server.
package watch
