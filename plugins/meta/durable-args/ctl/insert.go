package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

func newInsert(n *node) *cobra.Command {
	var layout string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "insert CONFLIST",
		Short: "Put the durable-args stanzas into a conflist",
		Long: `Put the durable-args stanzas into a conflist, with the capabilities of its plugins.

Everything else in the file stays as it is, byte for byte, and remove undoes it
exactly. If the stanzas are in already, nothing is changed but that capabilities
they lack are added. The file is replaced in one step: whatever happens
meanwhile, it is the old one or the new one.

The layouts:
  first       one stanza, first; the result of ADD is not journaled
  first-last  one first and one last; also the result is journaled
  wrapped     one stanza that holds the others, for plugins that do not bear a
              stanza before them or a second DEL

Pods that run already are protected from their next ADD on, or from now on with
"durable-argsctl import".

The stanza finds its conflist in ` + stanza.DefaultConfDir + `. If the file is elsewhere, the
stanza is told so; if runtimes see the file elsewhere than it is now, say where
with --conf-dir. What --data-dir and --cache-dir say, the stanza is told, too.`,
		Example: `  durable-argsctl insert --dry-run /etc/cni/net.d/10-pods.conflist
  durable-argsctl insert /etc/cni/net.d/10-pods.conflist
  durable-argsctl insert --layout wrapped /etc/cni/net.d/05-cilium.conflist`,
		Args: exactArgs("CONFLIST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if layout != "" && !slices.Contains(layouts, layout) {
				return usage("there is no layout %q, only %s", layout, strings.Join(layouts, ", "))
			}
			e := conflistEdit{cmd: cmd, path: args[0], dryRun: dryRun}
			return e.run(func(c *conflistText) (edits []edit, done string, err error) {
				return e.insert(c, layout, n.asked(cmd))
			})
		},
	}
	cmd.Flags().StringVar(&layout, "layout", "", "first, first-last or wrapped (default: the one that it has, else first-last)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be changed, as a diff, and change nothing")
	return cmd
}

// conflistEdit is one run of insert or remove.
type conflistEdit struct {
	cmd    *cobra.Command
	path   string
	dryRun bool
}

// directories are where a stanza is told to look.
type directories struct{ conf, data, cache string }

// asked are the directories that the operator has named, and empty where not.
func (n *node) asked(cmd *cobra.Command) directories {
	given := func(flag, dir string) string {
		if cmd.Flags().Changed(flag) {
			return dir
		}
		return ""
	}
	return directories{given("conf-dir", n.confDir), given("data-dir", n.dataDir), given("cache-dir", n.cacheDir)}
}

func (e conflistEdit) insert(c *conflistText, asked string, dirs directories) (edits []edit, done string, err error) {
	plugins, err := c.plugins()
	if err != nil {
		return nil, "", err
	}
	beside, besideDir, err := c.loadedBeside(e.path)
	if err != nil {
		return nil, "", err
	}
	layout, err := c.layout()
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("%w; take them out first: durable-argsctl remove %s", err, e.path)
	case layout != "" && asked != "" && layout != asked:
		return nil, "", fmt.Errorf("it has the layout %s; take that out first: durable-argsctl remove %s", layout, e.path)
	case layout == "":
		if layout = asked; asked == "" {
			layout = firstLast
		}
		if dirs, err = e.told(dirs); err != nil {
			return nil, "", err
		}
	default:
		if err := e.agrees(c, dirs); err != nil {
			return nil, "", err
		}
	}
	if layout == stanza.First {
		// It protects these too, so it has to declare what they do.
		plugins = append(plugins, beside...)
	} else if len(beside) > 0 {
		e.say("the plugins in %s come behind the stanza and are not protected; in the layout first they are", besideDir)
	}
	if weak := weakIn(plugins); len(weak) > 0 && layout != stanza.Wrapped {
		if asked == "" && len(c.ours()) == 0 {
			return nil, "", fmt.Errorf("%s, so it is better wrapped: durable-argsctl insert --layout wrapped %s", strings.Join(weak, "; "), e.path)
		}
		for _, sentence := range weak {
			e.say("%s; it is better wrapped", sentence)
		}
	}

	capabilities := capabilitiesOf(plugins)
	edits, err = c.insertion(layout, capabilities, dirs)
	if err != nil || len(edits) == 0 {
		return nil, "it has the layout " + layout + " already, nothing to do", err
	}
	// Nothing is written but what has been seen to be right.
	after, err := c.edited(edits)
	if err != nil {
		return nil, "", err
	}
	if is, err := after.layout(); is != layout {
		return nil, "", fmt.Errorf("it would have the layout %q, not %s (%v)", is, layout, err)
	}
	if missing, err := after.declare(capabilities); err != nil || len(missing) > 0 {
		return nil, "", fmt.Errorf("a capability would be missing (%v)", err)
	}
	if len(c.ours()) > 0 {
		return edits, "the capabilities that its stanzas lacked are added", nil
	}
	done = "the stanzas are put in, layout " + layout
	for _, m := range dirs.members() {
		done += fmt.Sprintf(", with the %s %s", m.key, m.dir)
	}
	return edits, done, nil
}

// members are the fields of a stanza that are not empty.
func (d directories) members() []struct{ key, dir string } {
	all := []struct{ key, dir string }{{"confDir", d.conf}, {"dataDir", d.data}, {"cacheDir", d.cache}}
	return slices.DeleteFunc(all, func(m struct{ key, dir string }) bool { return m.dir == "" })
}

// told returns what a stanza has to say of where things are, empty if that is
// where it looks anyway.
func (e conflistEdit) told(asked directories) (directories, error) {
	// Not where a link leads: runtimes find the link.
	asked.conf = cmp.Or(asked.conf, filepath.Dir(e.path))
	for _, of := range []struct {
		dir           *string
		flag, without string
	}{
		{&asked.conf, "--conf-dir", stanza.DefaultConfDir},
		{&asked.data, "--data-dir", stanza.DefaultDataDir},
		{&asked.cache, "--cache-dir", stanza.DefaultCacheDir},
	} {
		if *of.dir == "" {
			continue
		}
		dir, err := filepath.Abs(*of.dir)
		switch {
		case err != nil:
			return directories{}, err
		case dir == of.without:
			dir = ""
		case !utf8.ValidString(dir):
			return directories{}, fmt.Errorf("the name of directory %q is not UTF-8, so it cannot be said in JSON; say another with %s", dir, of.flag)
		}
		*of.dir = dir
	}
	return asked, nil
}

// agrees returns an error if a stanza that is in journals elsewhere than asked:
// what is journaled there would be out of sight.
func (e conflistEdit) agrees(c *conflistText, asked directories) error {
	for _, i := range c.ours() {
		for _, of := range []struct{ field, flag, has, asked string }{
			{"dataDir", "--data-dir", c.stanzas[i].DataDir, asked.data},
			{"cacheDir", "--cache-dir", c.stanzas[i].CacheDir, asked.cache},
		} {
			if of.asked == "" {
				continue
			}
			if dir, err := filepath.Abs(of.asked); err != nil || dir != filepath.Clean(of.has) {
				return fmt.Errorf("its stanza has the %s %s, not %s; leave out %s, or take the stanzas out first: durable-argsctl remove %s", of.field, of.has, of.asked, of.flag, e.path)
			}
		}
	}
	return nil
}

// run is change for an operator, who is told of it.
func (e conflistEdit) run(plan func(*conflistText) (edits []edit, done string, err error)) error {
	_, err := e.change(plan)
	return err
}

// change reads the conflist, writes it with the edits that plan returns, and
// reports whether there are any; on a dry run it only prints them. done says what has been done to it, or why there
// is nothing to do.
func (e conflistEdit) change(plan func(*conflistText) (edits []edit, done string, err error)) (bool, error) {
	if extension := filepath.Ext(e.path); extension != ".conflist" {
		return false, fmt.Errorf("%s: runtimes take only a file whose name ends in .conflist for a chain of plugins; make it one", e.path)
	}
	target, err := filepath.EvalSymlinks(e.path)
	if err != nil {
		return false, err
	}
	if info, err := os.Lstat(e.path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		e.say("it is a link; the file is %s", target)
	}
	var edits []edit
	var done string
	edited := func(text []byte) ([]byte, error) {
		c, err := parseConflist(text)
		if err != nil {
			return nil, err
		}
		if edits, done, err = plan(c); err != nil || len(edits) == 0 {
			return nil, err
		}
		return apply(text, edits), nil
	}
	if e.dryRun {
		var text []byte
		if text, _, err = readRegular(target); err == nil {
			_, err = edited(text)
		}
		if err == nil && len(edits) > 0 {
			_, err = fmt.Fprint(e.cmd.OutOrStdout(), unifiedDiff(target, text, edits))
			return true, err
		}
	} else {
		err = rewrite(target, edited)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return false, fmt.Errorf("%s: %w; run it as root", e.path, err)
	case err != nil:
		return false, fmt.Errorf("%s: %w", e.path, err)
	}
	e.say("%s", done)
	return len(edits) > 0, nil
}

// say prints a line about the conflist.
func (e conflistEdit) say(format string, args ...any) {
	fmt.Fprintf(e.cmd.ErrOrStderr(), "%s: %s\n", e.path, fmt.Sprintf(format, args...))
}
