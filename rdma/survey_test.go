package rdma

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// nothing is a host without devices, or one that cannot list them.
type nothing struct{ err error }

func (n nothing) Devices() ([]verbs.DeviceInfo, error) { return nil, n.err }
func (n nothing) Open(string) (verbs.Device, error)    { return nil, n.err }
func port(list ...verbs.GIDEntry) [][]verbs.GIDEntry   { return [][]verbs.GIDEntry{list} }
func surveyOf(p verbs.Provider, name string) Survey {
	return NewOver(p, Options{Device: name}).Survey(16 << 20)
}
func says(err error, text string) bool  { return err != nil && strings.Contains(err.Error(), text) }
func addressOf(v Device, i int) Address { return v.Ports[0].Addresses[i] }
func ip(s string) netip.Addr            { return netip.MustParseAddr(s) }
func failing(err error) func() (verbs.Provider, error) {
	return func() (verbs.Provider, error) { return nil, err }
}
func broken(l *Link, err error) *Link { l.load = failing(err); return l }

// TestSurvey looks at hosts in all conditions, and leaves nothing open.
func TestSurvey(t *testing.T) {
	cards := shelf{
		"mlx5_0": {class: verbs.ClassMellanox, ports: port(
			gid("fe80::1", 0, 2, verbs.GIDRoCEv1), gid("::", 1, 2, verbs.GIDRoCEv2), gid("10.0.0.1", 3, 1, verbs.GIDRoCEv2), gid("10.0.0.2", 256, 1, verbs.GIDRoCEv2))},
		"mlx5_1": {broken: true},
	}
	s := surveyOf(cards, "")
	if s.Library != nil || s.Listing != nil || len(s.Devices) != 2 {
		t.Fatalf("%+v", s)
	}
	if v := s.Devices[1]; !errors.Is(v.Err, transport.ErrUnavailable) || v.Ports != nil {
		t.Errorf("a device that cannot be opened: %+v", v)
	}
	v := s.Devices[0]
	if v.Class != "mlx5" || v.Err != nil || !errors.Is(v.Memory, verbs.ErrUnsupported) || len(v.Ports) != 1 {
		t.Fatalf("%+v", v)
	}
	if p := v.Ports[0]; !p.Active || p.State != "active" || p.MTU != 4096 || !p.Ethernet || len(p.Addresses) != 3 {
		t.Errorf("%+v", p)
	}
	if a := addressOf(v, 0); a.Usable || a.Kind != "RoCE v1" || a.IP != ip("fe80::1") {
		t.Errorf("%+v", a)
	}
	if a := addressOf(v, 1); !a.Usable || a.Index != 3 || a.IP != ip("10.0.0.1") {
		t.Errorf("%+v", a)
	}
	if a := addressOf(v, 2); a.Usable || a.Index != 256 {
		t.Errorf("an index that no queue pair takes: %+v", a)
	}
	cards.closed(t)
	if s := surveyOf(cards, "mlx5_0:1"); len(s.Devices) != 1 || !slices.Equal(s.Names, []string{"mlx5_0", "mlx5_1"}) {
		t.Errorf("the device that was named: %+v", s)
	}
	if s := surveyOf(cards, "mlx5_9"); !says(s.Listing, `no device "mlx5_9", there are mlx5_0, mlx5_1`) {
		t.Errorf("no such device: %+v", s)
	}
	if s := surveyOf(cards, ":"); s.Listing == nil {
		t.Errorf("no name: %+v", s)
	}
	if s := surveyOf(nothing{}, ""); s.Listing != nil || s.Devices != nil {
		t.Errorf("no devices: %+v", s)
	}
	if s := surveyOf(nothing{errors.New("no kernel")}, ""); !errors.Is(s.Listing, transport.ErrUnavailable) || !says(s.Listing, "no kernel") {
		t.Errorf("no list: %+v", s)
	}
	if s := broken(New(Options{}), errors.New("no library")).Survey(1); !errors.Is(s.Library, transport.ErrUnavailable) || !says(s.Library, "no library") {
		t.Errorf("no library: %+v", s)
	}
}

// TestSurveyMemory registers memory for a moment: in as many regions as the device
// wants, or says why not.
func TestSurveyMemory(t *testing.T) {
	for name, c := range map[string]struct {
		p       fakeverbs.Personality
		limit   int64
		regions int
		fails   error
	}{
		"one region":  {p: fakeverbs.MLX5(), regions: 1},
		"halves":      {p: regionsOf(10 << 20), regions: 2},
		"small ones":  {p: fakeverbs.MCDMA(), regions: 4},
		"locked down": {p: fakeverbs.MLX5(), limit: 8 << 20, fails: transport.ErrUnavailable},
		"just enough": {p: fakeverbs.MLX5(), limit: 16 << 20, regions: 1},
	} {
		h := new(fakeverbs.Net).Host("h", c.p, ip("10.0.0.1"), 0)
		h.LimitMemory(c.limit)
		s := surveyOf(h, "")
		if len(s.Devices) != 1 {
			t.Fatalf("%s: %+v", name, s)
		}
		if v := s.Devices[0]; v.Regions != c.regions || !errors.Is(v.Memory, c.fails) {
			t.Errorf("%s: %d regions, %v", name, v.Regions, v.Memory)
		}
		if left := h.Counts(); left.Devices+left.PDs+left.MRs != 0 {
			t.Errorf("%s: left %+v", name, left)
		}
	}
}

func TestBestAddress(t *testing.T) {
	four, six, local := Address{IP: ip("10.0.0.1"), Usable: true}, Address{IP: ip("fd00::1"), Usable: true}, Address{IP: ip("fe80::1"), Usable: true}
	old, twin := four, four
	old.Usable, twin.Index = false, 7
	for name, c := range map[string]struct {
		list []Address
		want Address
	}{
		"IPv4":       {[]Address{local, six, four, twin}, four},
		"IPv6":       {[]Address{old, local, six}, six},
		"link-local": {[]Address{old, local}, local},
		"none":       {[]Address{old}, Address{}},
	} {
		if got, ok := (Port{Addresses: c.list}).Best(); got != c.want || ok != c.want.Usable {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// regionsOf is a card whose regions have so many bytes at most, which it does not say.
func regionsOf(size int) fakeverbs.Personality {
	p := fakeverbs.MCDMA()
	p.MaxMRSize = size
	return p
}

// TestSurveyBad: a device that is not used again is told of, and not opened.
func TestSurveyBad(t *testing.T) {
	cards := shelf{"mlx5_0": {ports: port(gid("10.0.0.1", 3, 0, verbs.GIDRoCEv2))}, "mlx5_1": {ports: port(gid("10.0.1.1", 1, 0, verbs.GIDRoCEv2))}}
	l := NewOver(cards, Options{})
	l.setBad("mlx5_0", verbs.ErrBusy)
	s := l.Survey(1 << 20)
	if len(s.Devices) != 2 {
		t.Fatalf("%+v", s)
	}
	for _, v := range s.Devices {
		if bad := v.Name == "mlx5_0"; errors.Is(v.Err, verbs.ErrBusy) != bad || bad && len(v.Ports) > 0 {
			t.Errorf("%+v", v)
		}
	}
}

func TestChoiceFor(t *testing.T) {
	cards := shelf{"mlx5_0": {ports: port(gid("10.0.0.1", 3, 0, verbs.GIDRoCEv2))}, "mlx5_1": {ports: port(gid("10.0.1.1", 1, 0, verbs.GIDRoCEv2))}}
	l := NewOver(cards, Options{})
	c, err := l.ChoiceFor(ip("10.0.1.1"))
	if err != nil || c.Device != "mlx5_1" || c.Index != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := l.ChoiceFor(netip.Addr{}); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("no address, two devices: %v", err)
	}
	cards.closed(t)
}
