package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/tools/services"
	"pdlink/transport/keys"
)

func newService(std streams, config *configFlags, look checks, watching map[string]*watchFlags) *cobra.Command {
	c := &cobra.Command{
		Use:   "service",
		Short: "files by which systemd and launchd run decode and prefill",
		Long: `service prints the files by which the system's service manager starts decode or
prefill with the host and again when it has ended. What they do is in the config
file, see "pdlink config".

` + statusText,
		Args: group,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newServicePrint(std, config, look, watching))
	return c
}

func newServicePrint(std streams, config *configFlags, look checks, watching map[string]*watchFlags) *cobra.Command {
	var system, program, account string
	c := &cobra.Command{
		Use:   "print {decode | prefill}",
		Short: "print a service's file",
		Long: `print prints a service's file, and on standard error where it belongs and how it is
started. It changes nothing on this host.

The service runs as --user, this user unless it says another one: whose keys and
config file count (--config names another file, for the service too), and who may write the decoder's store (decode) or is the engine's
(prefill). On macOS it is a daemon, not an agent: macOS keeps agents from the local
network without a word.

Variables of this shell do not reach a service: what is to count belongs into the config
file, and API keys into the file that systemd's unit names, /etc/pdlink/SERVICE.env.

` + statusText,
		Example: `  pdlink service print prefill | sudo tee /etc/systemd/system/pdlink-prefill.service
  pdlink service print decode | sudo tee /Library/LaunchDaemons/pdlink.decode.plist`,
		Args: wants(1, "SERVICE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []cobra.Completion{"decode", "prefill"}, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := flagsOf(c).filled(map[string]string{"system": system, "program": program, "user": account}); err != nil {
				return err
			}
			h, err := serviceHost(system, config.path, program, account)
			if err != nil {
				return err
			}
			return servicePrint(std, c.Root(), args[0], system, h, look, watching)
		},
	}
	fl := c.Flags()
	fl.StringVar(&system, "system", services.Here, "for `SYSTEM`: systemd or launchd")
	fl.StringVar(&program, "program", "", "where pdlink is, `PATH` (default: this program)")
	fl.StringVar(&account, "user", "", "run as this `USER` (default: this one)")
	must(c.RegisterFlagCompletionFunc("system", cobra.FixedCompletions([]string{services.Systemd, services.Launchd}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.MarkFlagFilename("program"))
	return c
}

// serviceHost is what a unit has to know.
func serviceHost(system, config, program, account string) (h services.Host, err error) {
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return h, failed(fmt.Errorf("find this program: %w: name it with --program", err))
		}
	}
	who, err := user.Current()
	if account != "" {
		who, err = user.Lookup(account)
	}
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown): // it may be one of the host that the file is for
		h.User, h.Home = account, services.HomeOf(system, account)
	case err != nil:
		return h, fmt.Errorf("--user: %w", err)
	default:
		h.User, h.Home = who.Username, who.HomeDir
	}
	if h.Program, err = filepath.Abs(program); err != nil {
		return h, failed(err)
	}
	if config == "" {
		config = os.Getenv(configEnv)
	}
	if config == "" {
		return h, nil
	}
	if config, err = cmdline.Home(config); err == nil {
		h.Config, err = filepath.Abs(config)
	}
	return h, err
}

func servicePrint(std streams, root *cobra.Command, service, system string, h services.Host, look checks, watching map[string]*watchFlags) error {
	u, err := services.Find(service, system)
	if err != nil {
		return err
	}
	var said []string
	h.Writable, said = serviceSettings(root, u, h, look[service], watching[service])
	text, err := u.Text(h)
	if err != nil {
		return err
	}
	for _, w := range append(serviceWarnings(u, h), said...) {
		std.warnf("%s", w)
	}
	std.printf("%s", painted(text))
	std.notef("this belongs into %s; then\n", u.Place)
	for _, line := range append(u.Start, u.LogCommand(h)) {
		std.notef("  %s\n", line)
	}
	return nil
}

// serviceWarnings are what keeps a service from what works in this shell.
func serviceWarnings(u services.Unit, h services.Host) (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if h.User == "root" {
		warn("it would run as root: name the user whose keys and config file count, and whose the engine or the decoder is, with --user")
	}
	if _, err := user.Lookup(h.User); err != nil {
		warn("--user: this host has no user %s: make it, or use the file on a host that has it; its home directory is taken to be %s", h.User, h.Home)
	}
	if u.System == services.Here {
		_, err := os.Stat(h.Program)
		switch {
		case services.Shortlived(h.Program):
			warn("%s does not stay there: install it (`sudo install %s /usr/local/bin/pdlink`) and give --program /usr/local/bin/pdlink", h.Program, keys.ShellPath(h.Program))
		case err != nil:
			warn("--program: %v", err)
		}
		if h.Config != "" {
			if _, err := os.Stat(h.Config); err != nil {
				warn("--config: %v", err)
			}
			if services.Shortlived(h.Config) {
				warn("%s does not stay there, or the service does not see it: put the config file elsewhere", h.Config)
			}
		}
	}
	if names := serviceVariables(u.Service); len(names) > 0 {
		warn("the service does not see %s of this shell: %s; what is a flag's may stand in the config file as well", listText(names), variablesCure(u, names))
	}
	return all
}

// variablesCure is the command that gives a service variables of this shell, beside
// those that it has.
func variablesCure(u services.Unit, names []string) string {
	text := ""
	for _, name := range names {
		name = strings.TrimPrefix(name, "$")
		if u.Env == "" {
			text += fmt.Sprintf(" -c \"Add :EnvironmentVariables:%s string $%[1]s\"", name)
		} else {
			text += fmt.Sprintf(" \"%s=$%[1]s\"", name)
		}
	}
	if u.Env == "" {
		return fmt.Sprintf("`sudo /usr/libexec/PlistBuddy%s %s && sudo chmod 600 %[2]s`, before it is started", text, u.Place)
	}
	return fmt.Sprintf("`printf '%%s\\n'%s | sudo sh -c 'umask 077; mkdir -p -m 755 %s; cat >> %s'`", text, filepath.Dir(u.Env), u.Env)
}

// serviceSettings looks at what the config file of the service says: which directories the
// unit must let the service write, and what is wrong with it.
func serviceSettings(root *cobra.Command, u services.Unit, h services.Host, check func(given) error, watching *watchFlags) (writable, warnings []string) {
	c, _ := cmdline.Find(root, []string{u.Service})
	list, err := cmdline.Settings{Path: u.ConfigOf(h)}.List(c)
	if err != nil {
		return nil, []string{fmt.Sprintf("the service cannot use its config file, or this user not read it: %v", err)}
	}
	if check != nil && slices.ContainsFunc(list, func(x cmdline.Setting) bool { return x.Origin != cmdline.FromDefault && x.Idle == "" }) {
		if err := check(flagsOf(c)); err != nil {
			for line := range strings.Lines(cmdline.Plain(err)) {
				warnings = append(warnings, "the service would end with "+u.ConfigOf(h)+": "+strings.TrimSpace(line))
			}
		}
	}
	if u.Service != "prefill" {
		return nil, warnings // its unit lets it write where its user may
	}
	for _, x := range list {
		if x.Flag == "socket" {
			writable, socket := serviceSocket(x.Value, h)
			more, said := serviceWatched(watching.written())
			return append(writable, more...), slices.Concat(warnings, socket, said)
		}
	}
	return nil, warnings
}

// serviceWatched is serviceSettings of the files that the service writes for who watches
// it, by the directories of their flags.
func serviceWatched(dirs map[string]string) (writable, warnings []string) {
	for _, flag := range slices.Sorted(maps.Keys(dirs)) {
		switch dir := dirs[flag]; {
		case dir == filepath.Dir(defaultSocket):
		case !filepath.IsAbs(dir):
			warnings = append(warnings, fmt.Sprintf("%s: a service has no directory of its own: write the whole path", flag))
		case private(dir):
			warnings = append(warnings, fmt.Sprintf("%s: the service has a /tmp of its own, where nobody finds it: name another directory", flag))
		default:
			writable = append(writable, dir)
			warnings = append(warnings, fmt.Sprintf("%s: %s must be there before the service starts, and its user's", flag, dir))
		}
	}
	return writable, warnings
}

// private reports a directory of which a service has one of its own.
func private(dir string) bool {
	return strings.HasPrefix(dir+"/", "/tmp/") || strings.HasPrefix(dir+"/", "/var/tmp/")
}

// serviceSocket is serviceSettings of the engine's socket.
func serviceSocket(socket string, h services.Host) (writable, warnings []string) {
	dir := filepath.Dir(socket)
	switch {
	case dir == filepath.Dir(defaultSocket):
		return nil, nil
	case !filepath.IsAbs(socket):
		return nil, []string{fmt.Sprintf("socket = %q: a service has no directory of its own: write the whole path, or leave it out for %s", socket, defaultSocket)}
	case private(dir):
		return nil, []string{fmt.Sprintf("socket = %q: the service has a /tmp of its own, where the engine's workers do not find it: leave it out, for %s", socket, defaultSocket)}
	}
	return []string{dir}, []string{fmt.Sprintf("socket = %q: %s must be there before the service starts, and be %s's, also after the host has started again: "+
		"`sudo install -d -o %s %s`; /run/pdlink, where it is without that setting, the service makes by itself", socket, dir, h.User, keys.ShellPath(h.User), keys.ShellPath(dir))}
}

// serviceVariables are the names of variables of this shell that count for a service's
// command: those with a key first.
func serviceVariables(service string) (names []string) {
	key := map[string]string{"decode": decoderKeyEnv, "prefill": engineKeyEnv}[service]
	if os.Getenv(key) != "" {
		names = append(names, "$"+key)
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if value != "" && (name == linkkeys.Env || strings.HasPrefix(name, envPrefix+"_"+strings.ToUpper(service)+"_")) {
			names = append(names, "$"+name)
		}
	}
	return names
}
