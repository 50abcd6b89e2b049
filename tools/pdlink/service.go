package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"github.com/spf13/cobra"

	"pdlink/tools/services"
)

func newService(std streams) *cobra.Command {
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
	c.AddCommand(newServicePrint(std))
	return c
}

func newServicePrint(std streams) *cobra.Command {
	var system, program, account string
	c := &cobra.Command{
		Use:   "print {decode | prefill}",
		Short: "print a service's file",
		Long: `print prints a service's file, and on standard error where it belongs and how it is
started. It changes nothing on this host.

The service runs as --user, this user unless it says another one: whose keys and
config file count, and who may write the decoder's store (decode) or is the engine's
(prefill). On macOS it is a daemon, not an agent: macOS keeps agents from the local
network without a word.

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
			return servicePrint(std, args[0], system, program, account)
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

func servicePrint(std streams, service, system, program, account string) error {
	u, err := services.Find(service, system)
	if err != nil {
		return err
	}
	h := services.Host{Program: program}
	if program == "" {
		if h.Program, err = os.Executable(); err != nil {
			return failed(fmt.Errorf("find this program: %w: name it with --program", err))
		}
	} else if h.Program, err = filepath.Abs(program); err != nil {
		return failed(err)
	}
	who, err := user.Current()
	if account != "" {
		who, err = user.Lookup(account)
	}
	if err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	h.User, h.Home = who.Username, who.HomeDir
	text, err := u.Text(h)
	if err != nil {
		return err
	}
	if h.User == "root" {
		std.warnf("it would run as root: name the user whose keys and config file count, and whose the engine or the decoder is, with --user")
	}
	std.printf("%s", painted(text))
	std.notef("this belongs into %s; then\n", u.Place)
	for _, line := range append(u.Start, u.LogCommand(h)) {
		std.notef("  %s\n", line)
	}
	return nil
}
