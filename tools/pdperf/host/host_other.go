//go:build !linux && !darwin

package host

func read() Facts { return Facts{} }

func readLoad() Load { return Load{} }

func readPort(*Port) {}
