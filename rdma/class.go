package rdma

import "pdlink/rdma/internal/verbs"

// traits is what may be tried with a class of devices: where trying does harm, what is
// known of the class decides.
type traits struct {
	immediates  bool // WRITEs with immediate; one that is not understood ends MCDMA's completion queue
	unsignalled bool // requests without a completion
}

// traitsOf is the traits of a class; of one that is not known, none.
func traitsOf(c verbs.Class) traits {
	switch c {
	case verbs.ClassMellanox, verbs.ClassSoft, verbs.ClassMelonDMA:
		return traits{immediates: true, unsignalled: true}
	case verbs.ClassMCDMA, verbs.ClassApple, verbs.ClassOther:
	}
	return traits{}
}
