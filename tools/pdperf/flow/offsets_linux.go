package flow

import (
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// offsets are where the running kernel has what the programs read.
type offsets struct {
	ports     uint32 // struct sock: remote port, local port
	writeSeq  uint32 // struct tcp_sock
	copiedSeq uint32
	skbData   uint32 // struct sk_buff
	tried     bool   // tcp_retransmit_skb has a third argument: what became of the attempt
}

// findOffsets asks the kernel's own description of its types.
func findOffsets() (*offsets, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("%w: the kernel does not describe its types: %w", ErrUnsupported, err)
	}
	o := new(offsets)
	for _, f := range []struct {
		to           *uint32
		kind, member string
	}{
		{&o.ports, "sock_common", "skc_dport"}, // struct sock begins with it
		{&o.writeSeq, "tcp_sock", "write_seq"},
		{&o.copiedSeq, "tcp_sock", "copied_seq"},
		{&o.skbData, "sk_buff", "data"},
	} {
		var s *btf.Struct
		if err := spec.TypeByName(f.kind, &s); err != nil {
			return nil, fmt.Errorf("%w: struct %s: %w", ErrUnsupported, f.kind, err)
		}
		at, ok := member(s.Members, f.member)
		if !ok {
			return nil, fmt.Errorf("%w: struct %s of this kernel has no %s", ErrUnsupported, f.kind, f.member)
		}
		*f.to = at
	}
	o.tried = arguments(spec, "tcp_retransmit_skb") > 2
	return o, nil
}

// arguments is how many a tracepoint has; 0: unknown.
func arguments(spec *btf.Spec, tracepoint string) int {
	var t *btf.Typedef
	if spec.TypeByName("btf_trace_"+tracepoint, &t) != nil {
		return 0
	}
	p, ok := btf.UnderlyingType(t).(*btf.Pointer)
	if !ok {
		return 0
	}
	f, ok := btf.UnderlyingType(p.Target).(*btf.FuncProto)
	if !ok {
		return 0
	}
	return len(f.Params) - 1 // the first is of the tracepoint itself
}

// member is the offset of a member, which may be in structs and unions without a name.
func member(list []btf.Member, name string) (uint32, bool) {
	for _, m := range list {
		if m.Name == name {
			return m.Offset.Bytes(), true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if at, ok := member(inner, name); ok {
			return m.Offset.Bytes() + at, true
		}
	}
	return 0, false
}
