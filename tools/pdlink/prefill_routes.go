package main

import (
	"fmt"
	"slices"

	"pdlink/tools/linkkeys"
	"pdlink/transport/failover"
)

// parseRoutes reads --to: ways to one decode host, the preferred one first.
func (f *prefillFlags) parseRoutes() error {
	f.ways = nil
	for _, to := range f.to {
		u, err := parseLink(to)
		if err == nil {
			err = u.target("to")
		}
		if err == nil && slices.Contains(f.ways, u) {
			err = fmt.Errorf("--to %s is there twice: name each way to the decode host once", u)
		}
		if err != nil {
			return err
		}
		f.ways = append(f.ways, u)
	}
	return nil
}

// missing reports that --to is not there.
func missing(to []string, g given) error {
	if len(to) == 0 && !g("to") {
		return missingError("--to URL is missing: name the address at which `pdlink decode` listens")
	}
	return nil
}

// places are what decides about the keys.
func (f *prefillFlags) places() (all []linkkeys.Place) {
	for _, u := range f.ways {
		all = append(all, u.place())
	}
	return all
}

// routes are the ways as failover knows them.
func (f *prefillFlags) routes(o linkOptions) (all []failover.Route) {
	for _, u := range f.ways {
		all = append(all, failover.Route{Name: u.route(), Link: u.open(o), Addr: u.addr})
	}
	return all
}

// way is the URL of a route.
func (f *prefillFlags) way(e failover.Event) string {
	for _, u := range f.ways {
		if u.route() == e.Route && u.addr == e.Addr {
			return u.String()
		}
	}
	return e.Route + "://" + e.Addr
}
