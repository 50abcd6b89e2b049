package cost

import "fmt"

// IfRates is a link's break-even with engines that nobody measured: what it would be if.
type IfRates struct {
	Prefill   float64 `json:"prefill_tokens_per_second"`
	Native    float64 `json:"native_tokens_per_second"`
	BreakEven *int    `json:"break_even_tokens"`
}

// Text is the rates for people.
func (i IfRates) Text() string {
	return fmt.Sprintf("decoder reads %s tokens/s, prefill %s", Number(int(i.Native)), Number(int(i.Prefill)))
}

// assumedRates are pairs of engines that people have, the slowest decoder first: a laptop's
// beside one GPU, a large Mac's beside two GPUs, a server's beside several.
func assumedRates() []IfRates {
	return []IfRates{{Prefill: 1000, Native: 100}, {Prefill: 2000, Native: 400}, {Prefill: 6000, Native: 2000}}
}

// ifRates are the break-evens of a link where the engines are not known.
func ifRates(l Link, block int) []IfRates {
	list := assumedRates()
	for i := range list {
		e := Engines{Prefill: Rate(list[i].Prefill), Native: Rate(list[i].Native), Block: block}
		if n, ok := e.BreakEven(l); ok {
			list[i].BreakEven = &n
		}
	}
	return list
}
