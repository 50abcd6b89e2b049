package seal

// AtFrame makes frame the next one, under the key in use: nobody can wait for the last
// of a lane's frames.
func (x *Sealer) AtFrame(frame uint64) { x.d.at(frame) }

// AtFrame makes frame the next one, under the key in use.
func (x *Opener) AtFrame(frame uint64) { x.d.at(frame) }

func (d *direction) at(frame uint64) { d.frame, d.limit = frame, max(d.limit, frame+1) }
