package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/replay"
	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/transport"
)

// sealedLink is what a link is called whose data are encrypted and authenticated.
const sealedLink = "+tls"

// floorLink is the bare sender and receiver, as a link.
const floorLink = "floor"

// point is one way to move blocks that is measured.
type point struct {
	link string // of the list that the command has
	o    sendOptions
}

// text is a point for people.
func (p point) text() string {
	lanes := ""
	if p.o.lanes != 1 {
		lanes = fmt.Sprintf(", %d lanes", p.o.lanes)
	}
	return fmt.Sprintf("%s %s, %d in flight%s, %s", p.link, p.o.shape.text(), p.o.inFlight*p.o.shape.group, lanes, p.o.direction)
}

// sweep is what run and local are asked to measure: each link with each size or model,
// number of lanes, number of blocks in flight and direction.
type sweep struct {
	links      []string
	sizes      sizeList
	models     []string
	lanes      numberList
	inFlight   numberList
	directions []string

	each sendOptions // what all have in common
	reps int

	floor bool // the bare sender and receiver too
	ebpf  bool // programs in the kernel watch connections
	out   outputs

	groups bool // --in-flight was not given
	multi  bool // by check: a table, not the figures of one run
}

// register adds the flags. links is which there are, without those that a URL means.
func (s *sweep) register(c *cobra.Command, links string) {
	s.sizes, s.each.frame = sizeList{defaultBlock}, defaultFrame
	s.lanes, s.inFlight = numberList{1}, numberList{defaultInFlight}
	fl := c.Flags()
	fl.StringSliceVar(&s.links, "links", nil, "links to compare, of "+links)
	fl.Var(&s.sizes, "size", "bytes of a block, multiples of 8: one, a list (1MiB,16MiB), or a sweep (64KiB..64MiB, doubling)")
	fl.StringSliceVar(&s.models, "model", nil, "blocks and pieces of a model in place of a size: "+strings.Join(replay.SyntheticModels(), ", "))
	fl.Var(&s.each.frame, "frame", "payload bytes of a frame, the most that the link takes at once")
	fl.DurationVar(&s.each.time, "time", defaultTime, "how long to start new blocks")
	fl.DurationVar(&s.each.warmup, "warmup", defaultWarmup, "how long to send before measuring, 0 for not at all")
	fl.Var(&s.inFlight, "in-flight", "blocks on their way at a time, one number or a list; beyond 4, block times are upper bounds; of a model: chunks of 8,192 tokens or 128MiB, by default 2")
	fl.IntVar(&s.each.buffers, "buffers", 0, "blocks' worth of distinct memory to send from, used in turn (default: 8, or more for many in flight)")
	fl.Var(&s.lanes, "lanes", "data lanes, one number or a list; the smaller wish of the two ends counts")
	fl.StringVar(&s.each.sum, "sum", "", "checksum of pieces: "+strings.Join(transport.Sums(), ", ")+" (default: the first that both ends have; none only where both ends ask for it)")
	fl.BoolVar(&s.each.presummed, "presummed", true, "make checksums once beforehand, as where the bytes are made; false: while sending")
	fl.StringSliceVar(&s.directions, "direction", []string{push}, "push: this end sends; pull: the other end does; both at the same time; or a list")
	fl.IntVar(&s.reps, "reps", 1, "times that each is measured, interleaved, in an order that is reversed every other time")
	fl.BoolVar(&s.ebpf, "ebpf", false, "have programs in the kernel watch TCP: each retransmit and closed window, round trips, queues (Linux, root)")
	s.out.register(c)
}

// points are what is to be measured; names are the links that --links may name. It
// refuses what cannot be run.
func (s *sweep) points(c *cobra.Command, names []string) (list []point, err error) {
	given := c.Flags().Changed
	if len(s.models) > 0 && !given("size") {
		s.sizes = nil
	}
	s.groups = !given("in-flight")
	switch {
	case s.reps < 1 || s.reps > maxRuns:
		return nil, fmt.Errorf("--reps %d: want 1 to %d", s.reps, maxRuns)
	case len(s.directions) == 0:
		return nil, errors.New("--direction: none is given")
	case given("model") && len(s.models) == 0:
		return nil, errors.New("--model: none is given")
	}
	if err := s.out.check(); err != nil {
		return nil, err
	}
	for i, l := range s.links {
		if !slices.Contains(names, l) || slices.Contains(s.links[:i], l) {
			return nil, fmt.Errorf("--links %s: want each of %s once at most", strings.Join(s.links, ","), strings.Join(names, ", "))
		}
	}
	for _, shape := range s.shapes() {
		for _, lanes := range s.lanes {
			for _, direction := range s.directions {
				list, err = s.add(list, shape, lanes, direction)
				if err != nil {
					return nil, err
				}
			}
		}
	}
	if len(list) > maxPoints {
		return nil, fmt.Errorf("%d combinations to measure: want %d at most", len(list), maxPoints)
	}
	return list, nil
}

// shapes are the sizes and models, in options that have nothing else.
func (s *sweep) shapes() (list []sendOptions) {
	for _, z := range s.sizes {
		list = append(list, sendOptions{block: size(z)})
	}
	for _, m := range s.models {
		list = append(list, sendOptions{model: m})
	}
	return list
}

// add adds the points of a shape.
func (s *sweep) add(list []point, shape sendOptions, lanes int, direction string) ([]point, error) {
	inFlight := s.inFlight
	if shape.model != "" && s.groups {
		inFlight = numberList{defaultGroups}
	}
	for _, n := range inFlight {
		o := s.each
		o.block, o.model, o.lanes, o.inFlight, o.direction = shape.block, shape.model, lanes, n, direction
		if err := o.check(); err != nil {
			return nil, err
		}
		for _, l := range s.links {
			p := point{l, o}
			if l == floorLink {
				if lanes != s.lanes[0] || direction != s.directions[0] {
					continue // it has one socket and one direction
				}
				p.o.lanes, p.o.direction = 1, push
			}
			list = append(list, p)
		}
	}
	return list, nil
}

// withFloor adds the floor to the links, where one of them is TCP and a table is made,
// unless it was decided otherwise.
func (s *sweep) withFloor(c *cobra.Command) {
	has := slices.ContainsFunc(s.links, func(l string) bool { return strings.TrimSuffix(l, sealedLink) == "tcp" })
	if c.Flags().Changed("floor") && !s.floor || !c.Flags().Changed("floor") && (!s.multi || !has) || slices.Contains(s.links, floorLink) {
		return
	}
	s.links = append(s.links, floorLink)
	s.multi = true
}

// several reports whether a command line asks for more than one measurement.
func (s *sweep) several(c *cobra.Command) bool {
	return c.Flags().Changed("links") || s.reps > 1 || len(s.sizes)+len(s.models) > 1 && c.Flags().Changed("size") || len(s.models) > 1 ||
		len(s.lanes) > 1 || len(s.inFlight) > 1 || len(s.directions) > 1 || s.floor
}

// sizeList is a flag's list of sizes.
type sizeList []int64

// String implements pflag.Value.
func (z *sizeList) String() string {
	words := make([]string, len(*z))
	for i, n := range *z {
		words[i] = sizeText(n)
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value.
func (z *sizeList) Set(text string) error {
	var list sizeList
	for word := range strings.SplitSeq(text, ",") {
		from, to, sweeps := strings.Cut(word, "..")
		lo, err := parseSize(from)
		if err != nil {
			return err
		}
		hi := lo
		if sweeps {
			if hi, err = parseSize(to); err != nil {
				return err
			}
			if lo < 1 || hi < lo {
				return fmt.Errorf("sweep %q: want the smaller size first, above 0", word)
			}
		}
		for n := lo; n <= hi; n *= 2 {
			list = append(list, n)
			if n == 0 {
				break
			}
		}
	}
	*z = list
	return nil
}

// Type implements pflag.Value.
func (z *sizeList) Type() string { return "sizes" }

// numberList is a flag's list of whole numbers above 0.
type numberList []int

// String implements pflag.Value.
func (n *numberList) String() string {
	words := make([]string, len(*n))
	for i, v := range *n {
		words[i] = strconv.Itoa(v)
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value.
func (n *numberList) Set(text string) error {
	var list numberList
	for word := range strings.SplitSeq(text, ",") {
		v, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || v < 1 {
			return fmt.Errorf("%q is no whole number above 0, such as 1 or 1,2,4", word)
		}
		list = append(list, v)
	}
	*n = list
	return nil
}

// Type implements pflag.Value.
func (n *numberList) Type() string { return "numbers" }

// total is how long measuring takes at least.
func total(list []point, reps int) (d time.Duration) {
	for _, p := range list {
		d += p.o.time + p.o.warmup
	}
	return d * time.Duration(reps)
}

// linkName is what a result's link is called in tables.
func (r *result) linkName() string {
	switch {
	case r.Program == floorLink:
		return floorLink
	case r.Sealed:
		return r.Link + sealedLink
	}
	return r.Link
}

// plain makes an error of one measurement one line.
func plain(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(cmdline.Plain(err)), "\n", "; ")
}

// localLinks are those that have both ends on this host.
func localLinks() []string {
	return []string{"tcp", "tcp" + sealedLink, rdma.Scheme, rdma.Scheme + sealedLink, "mem", floorLink}
}
