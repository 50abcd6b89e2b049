package main

// linkOf is the link that carried most of what a job sent: of several ways to a receiver
// it need not be the preferred one, and a way of rdma may go over tcp. Before anything was
// sent it is the preferred one.
func (f *replayFlags) linkOf(j *job) string {
	name, most := f.url.scheme, uint64(0)
	for _, l := range j.sent.Links {
		if l.Bytes > most {
			name, most = l.Link, l.Bytes
		}
	}
	return name
}
