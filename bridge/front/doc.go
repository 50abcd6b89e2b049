// Package front is the decoder's front door: a reverse proxy that lets a prompt
// be read elsewhere before the decoder sees it. A client talks to it as to the
// decoder itself. What it forwards it forwards byte for byte, request and answer,
// whatever it did before; every failure of its own ends in the decoder's answer.
//
// Prefill hosts that connect are [Hosts]: each is an engine while it says so, calls to
// it go over its own connection, and survive the loss of one. Hosts that say to be parts
// of one engine are one while all of them are here: each sends its part of every
// transfer.
//
// A request that the decoder's plug-in can plan ([Planner]) and that is cold
// enough ([Cold]) is held while a prefill engine ([Engine]) has its blocks put
// into the decoder's store; then the decoder adopts them, and the request is an
// ordinary prefix hit. Equal cold prompts share one transfer. What became of a
// request is said three times: in the header X-PDLink before the answer, in
// [Options].OnRecord after it, and in the list that [Front.Transfers] serves.
//
// A client whose prompt was bridged in part is told by that header, which begins with
// "partial N/M tokens" and says why; its answer is the decoder's, and no other. One that
// is kept alive ([Options].KeepAlive) has its headers before that is known: it finds the
// same in the list.
//
// A request for a prompt is sent to the decoder a second time only where the decoder ended
// a connection that was kept, without a byte of an answer, and its system refused what was
// sent, or not all was: one that has read all of it may have begun. The reason in the header
// and the list says so. Other requests are made again where their body was not asked for;
// those that change nothing (GET), as net/http sees fit. A decoder whose answer is longer
// than its Content-Length says is broken: what is left over ends the connection, or is taken
// for the beginning of the answer that comes next over it, which may be another client's.
package front
