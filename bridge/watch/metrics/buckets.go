package metrics

// secondsBuckets are of transfers, requests and their phases: from what one block on a
// fast link takes to a million tokens on a slow one; each is 2 to 2.5 times the one
// before it.
func secondsBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000}
}

// goodputBuckets are bytes a second. Beside each rate that links have (1, 2.5, 10, 25, 40,
// 100, 200 Gbit/s) there is one at 0.9 of it, so that a link that is full can be told from
// one that is not.
func goodputBuckets() []float64 {
	gigabits := []float64{1, 2.5, 10, 25, 40, 100, 200}
	list := append(make([]float64, 0, 4+2*len(gigabits)), 1e6, 5e6, 12.5e6, 50e6)
	for _, g := range gigabits {
		full := g * 1e9 / 8
		list = append(list, .9*full, full)
	}
	return list
}

// bytesBuckets are a transfer's payload: from one block of plain KV to a million tokens of
// it, a factor of 4 each.
func bytesBuckets() []float64 {
	list := []float64{}
	for n := 1 << 20; n <= 1<<38; n <<= 2 {
		list = append(list, float64(n))
	}
	return list
}

// tokensBuckets are a transfer's tokens, a factor of 2 each, up to two million.
func tokensBuckets() []float64 {
	list := []float64{}
	for n := 1024; n <= 1<<21; n <<= 1 {
		list = append(list, float64(n))
	}
	return list
}

const (
	// leastBytes is the smallest transfer whose goodput says something of a link: below
	// it the seconds are those of opening and closing.
	leastBytes = 1 << 20

	// maxPeers bounds the values of the label peer; further ones are otherPeer. A host has
	// a handful.
	maxPeers = 64

	// otherPeer stands for peers that no key names.
	otherPeer = "other"
)
