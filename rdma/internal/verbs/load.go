package verbs

// Options of Load. The zero value is usable.
type Options struct {
	// Library is the path of libibverbs or librdma; empty means what the system's
	// loader finds under the usual names.
	Library string
}
