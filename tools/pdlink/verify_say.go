package main

import (
	"math"

	"github.com/fatih/color"

	"pdlink/bridge/replay"
	"pdlink/kernels/verify"
)

// say prints what was found and decides; end, if there is one, is why a check could not
// be made.
func (f *verifyCaseFlags) say(std streams, c *replay.Case, r *verify.Report, end error) error {
	sum := verifyCaseSummary{
		Event: "summary", Case: c.Name, Engine: r.Engine, Why: r.Why, Numerics: r.Numerics, Tokens: r.Tokens, Layers: r.Layers, OK: r.Good() && end == nil,
	}
	if !f.asJSON {
		std.printf("%s: %s, %s of %s\n", c.Name, r.Why, r.Numerics, count(r.Tokens, "token"))
	}
	for _, check := range r.Checks {
		switch check.Result {
		case verify.Passed:
			sum.Passed++
		case verify.Failed:
			sum.Failed++
		case verify.LeftOut:
			sum.LeftOut++
		}
		if err := f.sayCheck(std, c, r, check); err != nil {
			return err
		}
	}
	if f.asJSON {
		if err := std.json(sum); err != nil {
			return err
		}
	} else {
		std.printf("%d passed, %d failed, %d left out\n", sum.Passed, sum.Failed, sum.LeftOut)
	}
	switch {
	case sum.OK || end != nil:
		return end
	case sum.Failed == 0 && sum.Passed == 0:
		std.notef("nothing was checked: take more of the case, or one in which more is recorded; each check says what it lacks\n")
		return unusable(nil)
	}
	return failed(nil)
}

// sayCheck prints one check.
func (f *verifyCaseFlags) sayCheck(std streams, c *replay.Case, r *verify.Report, check verify.Check) error {
	engine := r.Engine
	if check.Name == checkBlocks {
		engine = "reference"
	}
	classes := make([]verifyClass, 0, len(check.Classes))
	for _, k := range check.Classes {
		l2 := k.L2
		if math.IsInf(l2, 0) { // JSON has no such number
			l2 = math.MaxFloat64
		}
		classes = append(classes, verifyClass{k.Name, k.Against, k.Elements, k.Equal, l2, k.Least, k.Most, k.Good()})
	}
	if f.asJSON {
		return std.json(verifyCheck{"check", c.Name, check.Name, engine, check.Result, check.Detail, classes})
	}
	attr := color.FgYellow
	switch check.Result {
	case verify.Passed:
		attr = color.FgGreen
	case verify.Failed:
		attr = color.FgRed
	case verify.LeftOut:
	}
	std.printf("  %-12s  %s", check.Name, std.paint(string(check.Result), attr))
	if check.Detail != "" {
		std.printf(": %s", check.Detail)
	}
	std.printf("\n")
	for _, k := range classes {
		word := "ok"
		if !k.OK {
			word = "BEYOND"
		}
		std.printf("    %-14s  %d of %d equal, relative L2 %.1e against what is %s, %s (at least %.1f %%, at most %.1e)\n",
			k.Class, k.Equal, k.Elements, k.L2, known(k.Against), word, 100*k.Least, k.Most)
	}
	return nil
}

// known says what a class was held against.
func known(against string) string {
	if against == "reference" {
		return "the reference's"
	}
	return against
}
