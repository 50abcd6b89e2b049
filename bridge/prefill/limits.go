package prefill

// RingBytes is the memory that a server with these options shares with its workers. The
// error is ErrRing for sizes that cannot be.
func (o Options) RingBytes() (int64, error) {
	g := o.withDefaults().geometry()
	if err := g.check(); err != nil {
		return 0, err
	}
	return int64(g.size()), nil
}

// Floor is the free memory in bytes below which a server with these options seals
// transfers; negative: none.
func (o Options) Floor() int64 { return o.withDefaults().MemFloor }

// Available is the memory in bytes that this host has free, as its servers see it.
func (o Options) Available() (int64, error) { return memAvailable(o.withDefaults().MemInfo) }
