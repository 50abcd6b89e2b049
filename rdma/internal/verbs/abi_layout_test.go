//go:build verbsabi

package verbs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The tests with this tag need the C headers of verbs and compilers: VERBS_INCLUDE is
// the directory that has infiniband/verbs.h, VERBS_CC the compilers, with commas; the
// first one makes programs for this machine.

func include(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("VERBS_INCLUDE")
	if _, err := os.Stat(filepath.Join(dir, "infiniband", "verbs.h")); err != nil {
		t.Fatalf("VERBS_INCLUDE does not name the headers of verbs: %v", err)
	}
	return dir
}

func compilers(t testing.TB) []string {
	t.Helper()
	all := strings.FieldsFunc(os.Getenv("VERBS_CC"), func(r rune) bool { return r == ',' })
	if len(all) == 0 {
		t.Fatal("VERBS_CC names no compiler")
	}
	return all
}

// compile runs a compiler on a source and returns what it says.
func compile(t testing.TB, cc, source string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), cc, append([]string{"-x", "c", "-std=c11", "-I", include(t), "-"}, args...)...)
	cmd.Stdin = strings.NewReader(source)
	return cmd.CombinedOutput()
}

// structs are those of C with the Go twin, and whether Go's has all of it. Structs
// that the library allocates may be longer, and ibv_port_attr grows at its end.
func structs() []struct {
	c    string
	twin any
	full bool
} {
	return []struct {
		c    string
		twin any
		full bool
	}{
		{"ibv_context", cContext{}, false}, {"ibv_context_ops", cContextOps{}, true},
		{"ibv_device_attr", cDeviceAttr{}, true}, {"ibv_port_attr", cPortAttr{}, false},
		{"ibv_gid_entry", cGIDEntry{}, true}, {"ibv_async_event", cAsyncEvent{}, true},
		{"ibv_mr", cMR{}, true}, {"ibv_comp_channel", cChannel{}, true}, {"ibv_qp", cQP{}, false},
		{"ibv_qp_cap", cQPCap{}, true}, {"ibv_qp_init_attr", cQPInitAttr{}, true},
		{"ibv_global_route", cGlobalRoute{}, true}, {"ibv_ah_attr", cAHAttr{}, true}, {"ibv_qp_attr", cQPAttr{}, true},
		{"ibv_sge", cSGE{}, true}, {"ibv_send_wr", cSendWR{}, true}, {"ibv_recv_wr", cRecvWR{}, true}, {"ibv_wc", cWC{}, true},
	}
}

// assertions is one line of C for every size, offset and number that this package
// has from the headers.
func assertions() []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, s := range structs() {
		typ := reflect.TypeOf(s.twin)
		if s.full {
			add("sizeof(struct %s) == %d", s.c, typ.Size())
		} else {
			add("sizeof(struct %s) >= %d", s.c, lastField(typ))
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := f.Tag.Get("c")
			if f.Name == "_" {
				continue
			}
			add("offsetof(struct %s, %s) == %d", s.c, name, f.Offset)
			add("sizeof(((struct %s *)0)->%s) == %d", s.c, name, f.Type.Size())
		}
	}
	add("sizeof(union ibv_gid) == %d", reflect.TypeFor[cGID]().Size())
	add("_Alignof(union ibv_gid) == %d", reflect.TypeFor[cGID]().Align())
	for name, value := range numbers() {
		add("%s == %d", name, value)
	}
	return all
}

// lastField is where the last field with a name ends.
func lastField(typ reflect.Type) (end uintptr) {
	for i := range typ.NumField() {
		if f := typ.Field(i); f.Name != "_" {
			end = f.Offset + f.Type.Size()
		}
	}
	return end
}

func numbers() map[string]int64 {
	return map[string]int64{
		"IBV_PORT_NOP": int64(PortNop), "IBV_PORT_DOWN": int64(PortDown), "IBV_PORT_INIT": int64(PortInit), "IBV_PORT_ARMED": int64(PortArmed),
		"IBV_PORT_ACTIVE": int64(PortActive), "IBV_PORT_ACTIVE_DEFER": int64(PortActiveDefer),
		"IBV_LINK_LAYER_UNSPECIFIED": int64(LinkUnspecified), "IBV_LINK_LAYER_INFINIBAND": int64(LinkInfiniBand), "IBV_LINK_LAYER_ETHERNET": int64(LinkEthernet),
		"IBV_MTU_256": int64(MTU256), "IBV_MTU_512": int64(MTU512), "IBV_MTU_1024": int64(MTU1024), "IBV_MTU_2048": int64(MTU2048), "IBV_MTU_4096": int64(MTU4096),
		"IBV_GID_TYPE_IB": int64(GIDInfiniBand), "IBV_GID_TYPE_ROCE_V1": int64(GIDRoCEv1), "IBV_GID_TYPE_ROCE_V2": int64(GIDRoCEv2),
		"IBV_EVENT_CQ_ERR": int64(EventCQError), "IBV_EVENT_QP_FATAL": int64(EventQPFatal), "IBV_EVENT_QP_REQ_ERR": int64(EventQPRequest),
		"IBV_EVENT_QP_ACCESS_ERR": int64(EventQPAccess), "IBV_EVENT_COMM_EST": int64(EventEstablished), "IBV_EVENT_SQ_DRAINED": int64(EventSQDrained),
		"IBV_EVENT_PATH_MIG": int64(eventMigrated), "IBV_EVENT_PATH_MIG_ERR": int64(eventMigrateError), "IBV_EVENT_DEVICE_FATAL": int64(EventDeviceFatal),
		"IBV_EVENT_PORT_ACTIVE": int64(EventPortActive), "IBV_EVENT_PORT_ERR": int64(EventPortError), "IBV_EVENT_LID_CHANGE": int64(EventLIDChange),
		"IBV_EVENT_PKEY_CHANGE": int64(eventPkeyChange), "IBV_EVENT_SM_CHANGE": int64(eventSMChange), "IBV_EVENT_QP_LAST_WQE_REACHED": int64(EventLastWQE),
		"IBV_EVENT_CLIENT_REREGISTER": int64(EventReregister), "IBV_EVENT_GID_CHANGE": int64(EventGIDChange), "IBV_EVENT_WQ_FATAL": 19,
		"IBV_ACCESS_LOCAL_WRITE": int64(AccessLocalWrite), "IBV_ACCESS_REMOTE_WRITE": int64(AccessRemoteWrite), "IBV_ACCESS_REMOTE_READ": int64(AccessRemoteRead),
		"IBV_QPT_RC": int64(RC), "IBV_QPT_UC": int64(UC),
		"IBV_QPS_RESET": int64(StateReset), "IBV_QPS_INIT": int64(StateInit), "IBV_QPS_RTR": int64(StateRTR), "IBV_QPS_RTS": int64(StateRTS), "IBV_QPS_ERR": int64(StateError),
		"IBV_WR_RDMA_WRITE": int64(OpWrite), "IBV_WR_RDMA_WRITE_WITH_IMM": int64(OpWriteImm), "IBV_WR_SEND": int64(OpSend), "IBV_WR_SEND_WITH_IMM": int64(OpSendImm), "IBV_WR_RDMA_READ": int64(OpRead),
		"IBV_SEND_SIGNALED": int64(FlagSignalled), "IBV_SEND_INLINE": int64(FlagInline),
		"IBV_WC_SUCCESS": int64(StatusOK), "IBV_WC_LOC_LEN_ERR": int64(StatusLocalLength), "IBV_WC_LOC_PROT_ERR": int64(StatusLocalAccess), "IBV_WC_WR_FLUSH_ERR": int64(StatusFlushed),
		"IBV_WC_REM_INV_REQ_ERR": int64(StatusRemoteBad), "IBV_WC_REM_ACCESS_ERR": int64(StatusRemoteAccess), "IBV_WC_REM_OP_ERR": int64(StatusRemoteOp),
		"IBV_WC_RETRY_EXC_ERR": int64(StatusRetries), "IBV_WC_RNR_RETRY_EXC_ERR": int64(StatusRNR), "IBV_WC_FATAL_ERR": int64(StatusFatal), "IBV_WC_GENERAL_ERR": int64(StatusGeneral),
		"IBV_WC_SEND": int64(WCSend), "IBV_WC_RDMA_WRITE": int64(WCWrite), "IBV_WC_RDMA_READ": int64(WCRead), "IBV_WC_RECV": int64(WCRecv), "IBV_WC_RECV_RDMA_WITH_IMM": int64(WCRecvImm),
		"IBV_WC_WITH_IMM": wcWithImm,
		"IBV_QP_STATE":    attrState, "IBV_QP_ACCESS_FLAGS": attrAccessFlags, "IBV_QP_PKEY_INDEX": attrPkeyIndex, "IBV_QP_PORT": attrPort, "IBV_QP_AV": attrAV,
		"IBV_QP_PATH_MTU": attrPathMTU, "IBV_QP_TIMEOUT": attrTimeout, "IBV_QP_RETRY_CNT": attrRetryCnt, "IBV_QP_RNR_RETRY": attrRNRRetry, "IBV_QP_RQ_PSN": attrRqPSN,
		"IBV_QP_MAX_QP_RD_ATOMIC": attrMaxRdAtomic, "IBV_QP_MIN_RNR_TIMER": attrMinRNRTimer, "IBV_QP_SQ_PSN": attrSqPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": attrMaxDestRd, "IBV_QP_DEST_QPN": attrDestQPN,
	}
}

func source(lines []string) string {
	var b bytes.Buffer
	b.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n")
	for _, line := range lines {
		fmt.Fprintf(&b, "_Static_assert(%s, %q);\n", line, line)
	}
	return b.String()
}

// TestLayout compares sizes, offsets and numbers with the headers' by the compiler of
// each processor.
func TestLayout(t *testing.T) {
	all := assertions()
	if len(all) < 300 {
		t.Errorf("%d assertions, want 300", len(all))
	}
	for _, cc := range compilers(t) {
		if out, err := compile(t, cc, source(all), "-fsyntax-only"); err != nil {
			t.Errorf("%s: %v\n%s", cc, err, out)
		}
		t.Logf("%s: %d assertions", cc, len(all))
	}
}

// TestLayoutCanFail changes one assertion of each kind.
func TestLayoutCanFail(t *testing.T) {
	cc := compilers(t)[0]
	for _, wrong := range []string{
		"sizeof(struct ibv_qp_attr) == 143", "offsetof(struct ibv_wc, wc_flags) == 32", "IBV_WR_RDMA_READ == 5", "sizeof(struct ibv_cq) >= 4096",
	} {
		if _, err := compile(t, cc, source([]string{wrong}), "-fsyntax-only"); err == nil {
			t.Errorf("%s passes", wrong)
		}
	}
}

// TestLayoutHasNames: a field without its name in C would be left out silently.
func TestLayoutHasNames(t *testing.T) {
	for _, s := range structs() {
		typ := reflect.TypeOf(s.twin)
		for i := range typ.NumField() {
			if f := typ.Field(i); f.Name != "_" && f.Tag.Get("c") == "" {
				t.Errorf("%s.%s has no name in C", typ.Name(), f.Name)
			}
		}
	}
}

// TestStatusNames compares the words for a status with their number in the headers.
func TestStatusNames(t *testing.T) {
	for status, word := range map[Status]string{
		StatusOK: "success", StatusFlushed: "flushed", StatusRetries: "no acknowledgement", StatusRNR: "no receive posted",
		StatusRemoteAccess: "remote access", StatusFatal: "fatal", StatusGeneral: "general", 23: "tag matching incomplete", 24: "number 24",
	} {
		if !strings.Contains(status.String(), word) {
			t.Errorf("status %d is %q, want %q in it", uint32(status), status, word)
		}
	}
}
