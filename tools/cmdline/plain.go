package cmdline

import (
	"regexp"
	"strings"
)

// plainer is what Plain leaves out.
type plainer struct{ packages, system, route, url *regexp.Regexp }

// packages are the names that errors begin with: of the packages of this module that
// name themselves so, which TestPackagesAreThoseOfTheModule finds, and "unix", as package
// tcp calls its links over sockets.
func packages() []string {
	return []string{
		"bridge", "calls", "codec", "cuda", "facts", "failover", "faultproxy", "front", "keys", "linkkeys", "mem", "page", "prefill", "rdma", "replay", "seal", "services",
		"session", "tcp", "transport", "unix", "verbs", "verify",
	}
}

// newPlainer compiles it.
func newPlainer() plainer {
	return plainer{
		packages: regexp.MustCompile(`(^|\n|[:;] )(?:(?:` + strings.Join(packages(), "|") + `): )+`),
		system:   regexp.MustCompile(`\b(dial|read|write) (?:tcp|unix) (\S+): `),
		route:    regexp.MustCompile(`\b([a-z]+ to (\S+)): dial (\S+): `),
		url:      regexp.MustCompile(`\b([a-z]+://([^\s?]+)\?\S+) to ([^\s,]+?)(:? |:?\n|,|$)`),
	}
}

// text returns the text for people.
func (p plainer) text(s string) string {
	s = p.packages.ReplaceAllString(s, "$1")
	s = p.url.ReplaceAllStringFunc(s, func(match string) string { // a way whose name is its URL
		if m := p.url.FindStringSubmatch(match); m[2] == m[3] {
			return m[1] + m[4]
		}
		return match
	})
	s = p.system.ReplaceAllStringFunc(s, func(match string) string {
		m := p.system.FindStringSubmatch(match)
		if said := strings.Count(s, m[2]) > 1; m[1] != "dial" || said {
			return ""
		}
		return m[2] + ": " // one of several that a name means
	})
	return p.route.ReplaceAllStringFunc(s, func(match string) string {
		if m := p.route.FindStringSubmatch(match); m[2] == m[3] {
			return m[1] + ": "
		}
		return match
	})
}

// Plain is the text of an error for people: without the names of packages, and without
// addresses that were said before. What an error is, programs learn by errors.Is.
func Plain(err error) string { return PlainText(err.Error()) }

// PlainText is Plain for a text that has errors in it.
func PlainText(s string) string { return newPlainer().text(s) }
