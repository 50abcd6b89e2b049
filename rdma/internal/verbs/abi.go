//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

// The structs of infiniband/verbs.h as 64-bit systems lay them out, amd64 and arm64
// alike. The tag c is the name in C, where it is checked against the headers; fields
// without one are padding or of no use here. Structs that the library allocates are
// cut after the last field that is read.
type (
	cContext struct {
		Device         uintptr     `c:"device"`
		Ops            cContextOps `c:"ops"`
		CmdFD          int32       `c:"cmd_fd"`
		AsyncFD        int32       `c:"async_fd"`
		NumCompVectors int32       `c:"num_comp_vectors"`
	}
	cContextOps struct {
		_           [11]uintptr
		PollCQ      uintptr `c:"poll_cq"`
		ReqNotifyCQ uintptr `c:"req_notify_cq"`
		_           [7]uintptr
		PostSRQRecv uintptr `c:"post_srq_recv"`
		_           [4]uintptr
		PostSend    uintptr `c:"post_send"`
		PostRecv    uintptr `c:"post_recv"`
		_           [5]uintptr
	}
	cDeviceAttr struct {
		FwVer            [64]byte `c:"fw_ver"`
		NodeGUID         uint64   `c:"node_guid"`
		SysImageGUID     uint64   `c:"sys_image_guid"`
		MaxMRSize        uint64   `c:"max_mr_size"`
		PageSizeCap      uint64   `c:"page_size_cap"`
		VendorID         uint32   `c:"vendor_id"`
		VendorPartID     uint32   `c:"vendor_part_id"`
		HwVer            uint32   `c:"hw_ver"`
		MaxQP            int32    `c:"max_qp"`
		MaxQPWR          int32    `c:"max_qp_wr"`
		DeviceCapFlags   uint32   `c:"device_cap_flags"`
		MaxSGE           int32    `c:"max_sge"`
		MaxSGERd         int32    `c:"max_sge_rd"`
		MaxCQ            int32    `c:"max_cq"`
		MaxCQE           int32    `c:"max_cqe"`
		MaxMR            int32    `c:"max_mr"`
		MaxPD            int32    `c:"max_pd"`
		MaxQPRdAtom      int32    `c:"max_qp_rd_atom"`
		MaxEERdAtom      int32    `c:"max_ee_rd_atom"`
		MaxResRdAtom     int32    `c:"max_res_rd_atom"`
		MaxQPInitRdAtom  int32    `c:"max_qp_init_rd_atom"`
		MaxEEInitRdAtom  int32    `c:"max_ee_init_rd_atom"`
		AtomicCap        uint32   `c:"atomic_cap"`
		MaxEE            int32    `c:"max_ee"`
		MaxRDD           int32    `c:"max_rdd"`
		MaxMW            int32    `c:"max_mw"`
		MaxRawIPv6QP     int32    `c:"max_raw_ipv6_qp"`
		MaxRawEthyQP     int32    `c:"max_raw_ethy_qp"`
		MaxMcastGrp      int32    `c:"max_mcast_grp"`
		MaxMcastQPAttach int32    `c:"max_mcast_qp_attach"`
		MaxTotalMcastQP  int32    `c:"max_total_mcast_qp_attach"`
		MaxAH            int32    `c:"max_ah"`
		MaxFMR           int32    `c:"max_fmr"`
		MaxMapPerFMR     int32    `c:"max_map_per_fmr"`
		MaxSRQ           int32    `c:"max_srq"`
		MaxSRQWR         int32    `c:"max_srq_wr"`
		MaxSRQSGE        int32    `c:"max_srq_sge"`
		MaxPkeys         uint16   `c:"max_pkeys"`
		LocalCAAckDelay  uint8    `c:"local_ca_ack_delay"`
		PhysPortCnt      uint8    `c:"phys_port_cnt"`
		_                uint32
	}
	// The exported ibv_query_port fills it up to Flags; later headers have more
	// behind, which only their own calls write.
	cPortAttr struct {
		State         uint32 `c:"state"`
		MaxMTU        uint32 `c:"max_mtu"`
		ActiveMTU     uint32 `c:"active_mtu"`
		GIDTblLen     int32  `c:"gid_tbl_len"`
		PortCapFlags  uint32 `c:"port_cap_flags"`
		MaxMsgSz      uint32 `c:"max_msg_sz"`
		BadPkeyCntr   uint32 `c:"bad_pkey_cntr"`
		QkeyViolCntr  uint32 `c:"qkey_viol_cntr"`
		PkeyTblLen    uint16 `c:"pkey_tbl_len"`
		LID           uint16 `c:"lid"`
		SMLID         uint16 `c:"sm_lid"`
		LMC           uint8  `c:"lmc"`
		MaxVLNum      uint8  `c:"max_vl_num"`
		SMSL          uint8  `c:"sm_sl"`
		SubnetTimeout uint8  `c:"subnet_timeout"`
		InitTypeReply uint8  `c:"init_type_reply"`
		ActiveWidth   uint8  `c:"active_width"`
		ActiveSpeed   uint8  `c:"active_speed"`
		PhysState     uint8  `c:"phys_state"`
		LinkLayer     uint8  `c:"link_layer"`
		Flags         uint8  `c:"flags"`
		_             [64]byte
	}
	// union ibv_gid is aligned to 8, which an array of bytes in Go is not.
	cGID      [2]uint64
	cGIDEntry struct {
		GID         cGID   `c:"gid"`
		GIDIndex    uint32 `c:"gid_index"`
		PortNum     uint32 `c:"port_num"`
		GIDType     uint32 `c:"gid_type"`
		NdevIfindex uint32 `c:"ndev_ifindex"`
	}
	cAsyncEvent struct {
		Element uintptr `c:"element"` // a union: cq, qp or, in the lower half, port_num
		Type    uint32  `c:"event_type"`
		_       uint32
	}
	cMR struct {
		Context uintptr `c:"context"`
		PD      uintptr `c:"pd"`
		Addr    uintptr `c:"addr"`
		Length  uintptr `c:"length"`
		Handle  uint32  `c:"handle"`
		LKey    uint32  `c:"lkey"`
		RKey    uint32  `c:"rkey"`
		_       uint32
	}
	cChannel struct {
		Context uintptr `c:"context"`
		FD      int32   `c:"fd"`
		Refcnt  int32   `c:"refcnt"`
	}
	cQP struct {
		Context   uintptr `c:"context"`
		QPContext uintptr `c:"qp_context"`
		PD        uintptr `c:"pd"`
		SendCQ    uintptr `c:"send_cq"`
		RecvCQ    uintptr `c:"recv_cq"`
		SRQ       uintptr `c:"srq"`
		Handle    uint32  `c:"handle"`
		QPNum     uint32  `c:"qp_num"`
		State     uint32  `c:"state"`
		QPType    uint32  `c:"qp_type"`
	}
	cQPCap struct {
		MaxSendWR     uint32 `c:"max_send_wr"`
		MaxRecvWR     uint32 `c:"max_recv_wr"`
		MaxSendSGE    uint32 `c:"max_send_sge"`
		MaxRecvSGE    uint32 `c:"max_recv_sge"`
		MaxInlineData uint32 `c:"max_inline_data"`
	}
	cQPInitAttr struct {
		QPContext uintptr `c:"qp_context"`
		SendCQ    uintptr `c:"send_cq"`
		RecvCQ    uintptr `c:"recv_cq"`
		SRQ       uintptr `c:"srq"`
		Cap       cQPCap  `c:"cap"`
		QPType    uint32  `c:"qp_type"`
		SqSigAll  int32   `c:"sq_sig_all"`
		_         uint32
	}
	cGlobalRoute struct {
		DGID         cGID   `c:"dgid"`
		FlowLabel    uint32 `c:"flow_label"`
		SGIDIndex    uint8  `c:"sgid_index"`
		HopLimit     uint8  `c:"hop_limit"`
		TrafficClass uint8  `c:"traffic_class"`
		_            uint8
	}
	cAHAttr struct {
		GRH         cGlobalRoute `c:"grh"`
		DLID        uint16       `c:"dlid"`
		SL          uint8        `c:"sl"`
		SrcPathBits uint8        `c:"src_path_bits"`
		StaticRate  uint8        `c:"static_rate"`
		IsGlobal    uint8        `c:"is_global"`
		PortNum     uint8        `c:"port_num"`
		_           uint8
	}
	cQPAttr struct {
		QPState          uint32  `c:"qp_state"`
		CurQPState       uint32  `c:"cur_qp_state"`
		PathMTU          uint32  `c:"path_mtu"`
		PathMigState     uint32  `c:"path_mig_state"`
		QKey             uint32  `c:"qkey"`
		RqPSN            uint32  `c:"rq_psn"`
		SqPSN            uint32  `c:"sq_psn"`
		DestQPNum        uint32  `c:"dest_qp_num"`
		QPAccessFlags    uint32  `c:"qp_access_flags"`
		Cap              cQPCap  `c:"cap"`
		AHAttr           cAHAttr `c:"ah_attr"`
		AltAHAttr        cAHAttr `c:"alt_ah_attr"`
		PkeyIndex        uint16  `c:"pkey_index"`
		AltPkeyIndex     uint16  `c:"alt_pkey_index"`
		EnSqdAsyncNotify uint8   `c:"en_sqd_async_notify"`
		SqDraining       uint8   `c:"sq_draining"`
		MaxRdAtomic      uint8   `c:"max_rd_atomic"`
		MaxDestRdAtomic  uint8   `c:"max_dest_rd_atomic"`
		MinRNRTimer      uint8   `c:"min_rnr_timer"`
		PortNum          uint8   `c:"port_num"`
		Timeout          uint8   `c:"timeout"`
		RetryCnt         uint8   `c:"retry_cnt"`
		RNRRetry         uint8   `c:"rnr_retry"`
		AltPortNum       uint8   `c:"alt_port_num"`
		AltTimeout       uint8   `c:"alt_timeout"`
		_                uint8
		RateLimit        uint32 `c:"rate_limit"`
		_                uint32
	}
	cSGE struct {
		Addr   uint64 `c:"addr"`
		Length uint32 `c:"length"`
		LKey   uint32 `c:"lkey"`
	}
	cSendWR struct {
		WRID       uint64    `c:"wr_id"`
		Next       uintptr   `c:"next"`
		SGList     uintptr   `c:"sg_list"`
		NumSGE     int32     `c:"num_sge"`
		Opcode     uint32    `c:"opcode"`
		SendFlags  uint32    `c:"send_flags"`
		ImmData    uint32    `c:"imm_data"` // in network order
		RemoteAddr uint64    `c:"wr.rdma.remote_addr"`
		RKey       uint32    `c:"wr.rdma.rkey"`
		_          uint32    // the rest of this union and the ones behind it
		_          [9]uint64 // are for other operations
	}
	cRecvWR struct {
		WRID   uint64  `c:"wr_id"`
		Next   uintptr `c:"next"`
		SGList uintptr `c:"sg_list"`
		NumSGE int32   `c:"num_sge"`
		_      uint32
	}
	cWC struct {
		WRID         uint64 `c:"wr_id"`
		Status       uint32 `c:"status"`
		Opcode       uint32 `c:"opcode"`
		VendorErr    uint32 `c:"vendor_err"`
		ByteLen      uint32 `c:"byte_len"`
		ImmData      uint32 `c:"imm_data"` // in network order
		QPNum        uint32 `c:"qp_num"`
		SrcQP        uint32 `c:"src_qp"`
		WCFlags      uint32 `c:"wc_flags"`
		PkeyIndex    uint16 `c:"pkey_index"`
		SLID         uint16 `c:"slid"`
		SL           uint8  `c:"sl"`
		DLIDPathBits uint8  `c:"dlid_path_bits"`
		_            [2]uint8
	}
)

// Numbers of the headers that this package does not export.
const (
	wcWithImm = 1 << 1 // enum ibv_wc_flags

	attrState       = 1 << 0 // enum ibv_qp_attr_mask
	attrAccessFlags = 1 << 3
	attrPkeyIndex   = 1 << 4
	attrPort        = 1 << 5
	attrAV          = 1 << 7
	attrPathMTU     = 1 << 8
	attrTimeout     = 1 << 9
	attrRetryCnt    = 1 << 10
	attrRNRRetry    = 1 << 11
	attrRqPSN       = 1 << 12
	attrMaxRdAtomic = 1 << 13
	attrMinRNRTimer = 1 << 15
	attrSqPSN       = 1 << 16
	attrMaxDestRd   = 1 << 17
	attrDestQPN     = 1 << 20
)

// Events of a queue pair and of a port that have no exported name.
const (
	eventMigrated     EventKind = 6
	eventMigrateError EventKind = 7
	eventPkeyChange   EventKind = 12
	eventSMChange     EventKind = 13
)
