package bridge_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/session"
)

func TestFullTargetHoldsTheSender(t *testing.T) {
	b := newBench(t, 12, 1000, func(b *bench, _ *bridge.Options, _ *session.Options) { b.target.room = 3 })
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)})
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(12)
}

func TestMoreOpenBlocksThanTheTargetTakes(t *testing.T) {
	b := newBench(t, 6, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
		b.target.room = 3
		o.IdleWait = 100 * time.Millisecond
	})
	var list []piece // no block is whole before all are open
	for half := range int64(2) {
		for i := range 6 {
			list = append(list, piece{i, half * 500, half*500 + 500})
		}
	}
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: list, after: func(int) error { return nil }})
	if err != nil || v.State != bridge.Partial || !strings.Contains(v.Reason, "smaller chunks") {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestSilentSenders(t *testing.T) {
	b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) {
		o.IdleWait, o.PartWait = 200*time.Millisecond, 50*time.Millisecond
	})
	quiet, err := b.dial().Open(t.Context(), request(1, 2)) // never says a word
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.open(b.dial(), 0, 2).Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1)})
	if err != nil || v.State != bridge.Complete {
		t.Errorf("all is visible, one sender is silent: %+v, %v", v, err)
	}
	if _, err := quiet.Finish(t.Context()); err != nil {
		t.Error(err)
	}
	begin := time.Now()
	quiet, err = b.dial().Open(t.Context(), transport.Request{ID: transport.ID{5}, Kind: "test", Meta: []byte("plan")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := quiet.Finish(t.Context())
	if err != nil || time.Since(begin) > time.Minute {
		t.Errorf("a sender that sent nothing: %s, %v", res.Result, err)
	}
}

func TestNobodyWasAdmitted(t *testing.T) {
	b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = time.Minute })
	for range 50 { // each would be kept for PartWait
		out, err := b.dial().Open(t.Context(), request(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		out.Cancel("never mind")
		if v := b.verdict(); v.State != bridge.Partial || v.Bytes != 0 {
			t.Fatalf("%+v", v)
		}
	}
}

func TestBlocksRemovedMeanwhile(t *testing.T) {
	b := newBench(t, 3, 1000, func(b *bench, _ *bridge.Options, _ *session.Options) {
		b.present = []bool{true, true, false}
		b.visible = func(i int) bool { return i != 1 }
	})
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: whole(1000, 2)})
	if err != nil || v.String() != "partial 1/3: block 1 was removed from the store meanwhile" {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestVerdictIsGivenToASenderThatTakesLittle(t *testing.T) {
	b := newBench(t, 2, 1000, func(_ *bench, _ *bridge.Options, so *session.Options) { so.MaxMeta = 150 })
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1)})
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
}

// TestSlowSendersAreNotGivenUp: while another part is missing, one whose frames take
// longer than that is waited for is still heard, and not for ever.
func TestSlowSendersAreNotGivenUp(t *testing.T) {
	for _, c := range []struct {
		gap  time.Duration // before the last frame; those before it take 8 s each
		want bridge.State
	}{{20 * time.Second, bridge.Complete}, {31 * time.Second, bridge.Complete}, {33 * time.Second, bridge.Partial}} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = 10 * time.Second })
			s := b.open(b.dial(), 0, 2)
			done := make(chan bridge.Verdict, 1)
			go func() {
				v, err := s.Run(t.Context(), &pieces{size: 1000, list: []piece{{0, 0, 500}, {0, 500, 1000}, {1, 0, 500}, {1, 500, 1000}}, after: func(i int) error {
					time.Sleep([]time.Duration{8 * time.Second, 8 * time.Second, c.gap, 0}[i])
					return nil
				}})
				if err != nil {
					t.Error(err)
				}
				done <- v
			}()
			time.Sleep(16*time.Second + c.gap - time.Millisecond) // the second comes late
			if c.want == bridge.Complete {
				v, err := b.open(b.dial(), 1, 2).Run(t.Context(), &pieces{size: 1000})
				if err != nil || v.State != c.want {
					t.Errorf("a pause of %v: %+v, %v", c.gap, v, err)
				}
			}
			if v := <-done; v.State != c.want {
				t.Errorf("a pause of %v: %+v", c.gap, v)
			}
		})
	}
}

// TestSenderThatIsCutOffBeforeItsFirstFrame: the transfer waits for it as for one that
// is cut off later, so that whoever waits for the first verdict does not see a partial.
func TestSenderThatIsCutOffBeforeItsFirstFrame(t *testing.T) {
	b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = 10 * time.Second })
	conn := b.dial()
	if _, err := conn.Open(t.Context(), request(0, 1)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // the receiver hears of it; if it does not yet, the test is easier
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1)})
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
	if first := <-b.verdicts; first.State != bridge.Complete {
		t.Errorf("the first verdict is %+v", first)
	}
}
