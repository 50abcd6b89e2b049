// Package trace records the timeline of transfers and writes it as trace JSON for
// Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing): who projected, waited for
// a slot, wrote to the wire, read from it, verified, wrote to the store, synchronised
// and adopted, and when.
//
// A [Recorder] goes where a process is put together, and stands between parts that
// know nothing of it:
//
//	rec := trace.New(trace.Options{Process: "pdlink decode"}) // nil when nobody asked: all below costs nothing then
//	link := tcp.New(tcp.Options{Session: session.Options{Intercept: rec.Intercept(nil)}}) // wire, verify
//	receiver := bridge.NewReceiver(bridge.Options{
//		Open:    rec.Opener(open),    // write, fsync
//		OnBlock: rec.OnBlock(noted),  // visible
//	})
//	courier, err := bridge.OpenCourier(ctx, rec.Dialer(dialler), req, shape) // lease
//	verdict, err := courier.Run(ctx, rec.Source(source))                     // project
//	span := rec.Begin(trace.Adopt, "adopt")                                  // whatever else
//	span.End(block, 0)
//	err = rec.WriteFile(name)
//
// Times are of the wall clock, so the traces of both ends go into one, as far as the
// hosts' clocks agree:
//
//	jq -s '{traceEvents: map(.traceEvents) | add}' decode.json prefill.json >both.json
package trace
