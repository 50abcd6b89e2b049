package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pdlink/bridge/prefill"
	"pdlink/transport/keys"
)

// defaultSocket is where the engine's workers connect.
const defaultSocket = "/run/pdlink/engine.sock"

// lookConnector takes a sidecar's place for a moment, and hears what workers say.
func (d *prefillDoctor) lookConnector(ctx context.Context) []finding {
	o := d.options()
	var refused []string
	faults := make(chan error, 16)
	o.OnFault = func(err error) {
		select {
		case faults <- err:
		default:
		}
	}
	o.Reclaim = -1
	server, err := prefill.Listen(ctx, o)
	if errors.Is(err, prefill.ErrInUse) && !isFile(d.f.socket) {
		d.busy = true
		return d.lookBeside(ctx)
	}
	if err != nil {
		return []finding{bad(err.Error(), socketCure(d.f.socket, err))}
	}
	defer server.Close() // nothing is under way
	d.await(ctx, server)
	for len(faults) > 0 {
		refused = append(refused, (<-faults).Error())
	}
	n, expected := server.Present()
	d.loaded, _ = server.Loaded()
	d.came = n > 0 || len(refused) > 0
	switch {
	case n == 0 && len(refused) > 0:
		slices.Sort(refused)
		return []finding{bad("workers came and were refused: "+strings.Join(slices.Compact(refused), "; "), refusedCure(refused))}
	case n == 0:
		return []finding{bad(fmt.Sprintf("no worker of the engine came to %s within %v", d.f.socket, workerTime), connectorCure(d.f.socket))}
	case n < expected:
		return []finding{bad(fmt.Sprintf("%d of %d workers came", n, expected), "see the engine's log for the others")}
	}
	found := []finding{good("%s of the engine came", count(n, "worker"))}
	if d.loaded != nil && len(d.loaded.Unknown) > 0 {
		found = append(found, doubt("not all is known of what they have loaded: "+silenceText(d.loaded), "update pdlink-vllm"))
	}
	return found
}

// lookBeside says of a pdlink prefill that runs whether it takes prompts: it has told the
// decode host.
func (d *prefillDoctor) lookBeside(ctx context.Context) []finding {
	const log = "`journalctl -u pdlink-prefill -n 20` says it, in the last line of \"ready\" or \"waiting\""
	runs := "a pdlink prefill runs and has " + d.f.socket
	if d.conn != nil {
		o, err := d.ask(ctx)
		d.waits, d.came = o.Waits, err == nil && o.Takes
		switch {
		case err == nil && o.Takes:
			return []finding{good("%s: it takes prompts, as the decode host knows, and tells that one what its workers have loaded", runs)}
		case err == nil && o.Waits != "":
			return []finding{bad(fmt.Sprintf("%s, and takes no prompts: %s", runs, o.Waits), "do what that says; a worker that was refused is in the log of pdlink prefill (`journalctl -u pdlink-prefill -n 20`)")}
		}
	}
	return []finding{doubt(fmt.Sprintf("%s: whether it takes prompts is not known here, and the decode host does not say it of a prefill host that is called %s", runs, d.f.name), log)}
}

// lookVersion looks whether the connector runs in the engine's version: where it does not,
// vLLM runs as without it, and one line of its log says so.
func (d *prefillDoctor) lookVersion(context.Context) []finding {
	if d.version == "" && d.unsaid == nil {
		return nil // nobody was asked
	}
	if d.version == "" {
		return []finding{doubt(fmt.Sprintf("the engine does not say which vLLM it is: %v", d.unsaid), "compare `vllm --version` with those that the connector was tested with: "+prefill.TestedVersions())}
	}
	err := prefill.CheckVersion(d.version)
	one := "install one of these (`pip install 'vllm==" + prefill.TestedVersions()[strings.LastIndex(prefill.TestedVersions(), " ")+1:] + ".*'`)"
	switch {
	case err == nil:
		return []finding{good("vLLM %s", d.version)}
	case errors.Is(err, prefill.ErrUntested) && d.came:
		return []finding{doubt(fmt.Sprintf("vLLM %s was never tested with the connector, only %s, and the connector tries it all the same", d.version, prefill.TestedVersions()), one+" where answers are not as they should be")}
	case errors.Is(err, prefill.ErrUntested) && d.busy:
		return []finding{doubt(fmt.Sprintf("vLLM %s was never tested with the connector, only %s; whether the connector tries it is not known here", d.version, prefill.TestedVersions()), one)}
	case errors.Is(err, prefill.ErrUntested):
		return []finding{bad(fmt.Sprintf("vLLM %s was never tested with the connector, only %s, so it runs without it", d.version, prefill.TestedVersions()), one+`, or have the connector try it: "untested": true in kv_connector_extra_config`)}
	}
	return []finding{bad(fmt.Sprintf("vLLM %s is not supported by the connector, only %s, so it runs without it", d.version, prefill.TestedVersions()), one)}
}

// connectorCure is what to do where no worker of the engine comes: the flag that starts
// the connector, with the socket where it is another than the connector's own.
func connectorCure(socket string) string {
	extra := ""
	if socket != defaultSocket {
		extra = fmt.Sprintf(`, "kv_connector_extra_config": {"socket": %q}`, socket)
	}
	return `start vLLM as this user with --kv-transfer-config '{"kv_connector": "PDLinkConnector", "kv_connector_module_path": "pdlink_vllm.connector", "kv_role": "kv_producer"` +
		extra + `}'; if it runs so, wait until it has loaded its model, see its log for "pdlink:", and in a container mount ` + filepath.Dir(socket)
}

// refusedCure is what to do about workers that were refused.
func refusedCure(reasons []string) string {
	var ids []string
	for _, why := range reasons {
		if m := regexp.MustCompile(`user (\d+) is not accepted`).FindStringSubmatch(why); len(m) == 2 && !slices.Contains(ids, m[1]) {
			ids = append(ids, m[1])
		}
	}
	if len(ids) == 0 {
		return "install pdlink-vllm of the same release as pdlink, and start the engine again"
	}
	return fmt.Sprintf("run the engine as this user, or accept its user: --uid %s (in the config file: uid = [%[1]s])", strings.Join(ids, ", "))
}

// isFile reports that something that is no socket has a name.
func isFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSocket == 0
}

// maxSocketPath is how long the path of a Unix socket may be, in bytes.
const maxSocketPath = 107

// socketCure is what to do about an engine's socket that cannot be had.
func socketCure(path string, err error) string {
	me := "USER"
	if u, err := user.Current(); err == nil {
		me = u.Username
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	dir, itself := filepath.Dir(path), ""
	if dir == filepath.Dir(defaultSocket) {
		itself = ", which the service does by itself"
	}
	take := fmt.Sprintf("run `sudo install -d -o %s %s`%s, or choose another --socket", keys.ShellPath(me), keys.ShellPath(dir), itself)
	switch _, lock := os.Lstat(path + ".lock"); {
	case errors.Is(err, prefill.ErrUnavailable):
		return "run pdlink prefill on Linux: it is for hosts that prefill"
	case errors.Is(err, prefill.ErrRing):
		return fmt.Sprintf("give --slots a smaller number, or leave it out, for %d", defaultSlots)
	case errors.Is(err, prefill.ErrInUse) && isFile(path):
		return fmt.Sprintf("that is a file: move it away, or choose another --socket than %s", keys.ShellPath(path))
	case errors.Is(err, prefill.ErrInUse):
		return "stop the pdlink prefill that runs (`sudo systemctl stop pdlink-prefill`), or choose another --socket, for the connector too"
	case len(path) > maxSocketPath:
		return fmt.Sprintf("choose a --socket of at most %d bytes", maxSocketPath)
	case errors.Is(err, fs.ErrNotExist):
		return "make the directory " + dir + ": " + take
	case errors.Is(err, fs.ErrPermission) && lock == nil:
		return fmt.Sprintf("another user made it: stop what runs there, run `sudo rm -f %s %[1]s.lock`, and `sudo install -d -o %s %s`", keys.ShellPath(path), keys.ShellPath(me), keys.ShellPath(dir))
	case errors.Is(err, fs.ErrPermission):
		return take
	}
	return "choose a --socket in a directory that is this user's"
}
