// Package pages is the HTTP server of a process for whoever looks after it: a live page,
// the figures for Prometheus, and whether it lives and is ready.
//
//	/         the page: transfers in flight, what each link carries, last verdicts, peers
//	/events   what the page shows, as server-sent events, twice a second
//	/state    the same once, as JSON
//	/metrics  for Prometheus
//	/healthz  200 while the process answers
//	/readyz   200 when it can do its work, else 503 with the reasons, one a line
//
// It changes nothing. It is for loopback or a Unix socket; elsewhere for who has a token.
// Texts that peers chose are on the page; they are put there as text. A client that reads
// slowly misses states and holds nobody up, one that reads nothing is dropped, and those
// that only stand there make room for others. While nobody looks nothing is computed.
package pages
