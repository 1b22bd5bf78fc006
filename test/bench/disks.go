package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// image is a file system in a file, mounted by way of a loop device.
type image struct {
	dir  string
	loop string
}

// newImage mounts an empty one at /run/NAME. Nothing of it has to be cleaned
// up: the file has no name any more, and the mount and the loop device go with
// the sandbox.
func newImage(name string, size int64, mkfs ...string) (image, error) {
	file, dir := filepath.Join("/var/lib", name+".img"), filepath.Join("/run", name)
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Truncate(file, size)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = run(mkfs[0], append(mkfs[1:], file)...)
	}
	if err == nil {
		err = run("mount", "-o", "loop", file, dir)
	}
	if err != nil {
		return image{}, errors.Join(err, os.RemoveAll(file))
	}
	if err := os.Remove(file); err != nil {
		return image{}, err
	}
	source, err := exec.Command("findmnt", "-n", "-o", "SOURCE", dir).Output()
	return image{dir, filepath.Base(strings.TrimSpace(string(source)))}, err
}

func (i image) unmount() error { return run("umount", i.dir) }

// flushes is how many flushes the device has seen (Documentation/block/stat.rst).
func (i image) flushes() (int, error) {
	stat, err := os.ReadFile(filepath.Join("/sys/block", i.loop, "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat))
	if len(fields) < 16 {
		return 0, fmt.Errorf("the kernel does not count the flushes of %s", i.loop)
	}
	return strconv.Atoi(fields[15])
}

// measureDisks repeats what flushes on each file system.
func measureDisks(b budget, rep *report) error {
	t := table{head: []string{"file system", "verb", "wall ms", "wall : floor", "flushes of the device"}}
	for _, fs := range []struct {
		name string
		mkfs []string
	}{
		{"ext4", []string{"mkfs.ext4", "-q"}},
		{"xfs", []string{"mkfs.xfs", "-q"}},
		{"btrfs", []string{"mkfs.btrfs", "-q"}},
	} {
		if _, err := exec.LookPath(fs.mkfs[0]); err != nil {
			fmt.Fprintf(os.Stderr, "bench: SKIPPED: %s, as there is no %s here\n", fs.name, fs.mkfs[0])
			continue
		}
		disk, err := newImage("disk-"+fs.name, 1<<30, fs.mkfs...)
		if err != nil {
			return err
		}
		r, err := newRig(filepath.Join(disk.dir, "rig"))
		if err != nil {
			return err
		}
		contestants := slices.DeleteFunc(r.contestants(), func(c contestant) bool {
			return !slices.Contains([]string{floor, first, known, last}, c.name)
		})
		res, err := contest(r, contestants, b.diskRounds)
		if err != nil {
			return err
		}
		for _, c := range contestants {
			flushed, err := disk.flushesOf(r, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			t.rows = append(t.rows, []string{fs.name, "ADD " + c.name, spread(res.add[c.name].of(wall)),
				times(pairs(res.add[c.name].of(wall), res.add[floor].of(wall), quotient)), flushed[0]})
			if c.del != nil {
				t.rows = append(t.rows, []string{fs.name, "DEL " + c.name, spread(res.del[c.name].of(wall)),
					times(pairs(res.del[c.name].of(wall), res.add[floor].of(wall), quotient)), flushed[1]})
			}
		}
		if err := disk.unmount(); err != nil {
			return err
		}
	}
	rep.add("File systems", "Loop images, on the disk of the other figures. DEL, too, is compared with the floor's ADD.", t)
	return nil
}

// flushesOf counts what ADD and DEL of a contestant make the device flush.
func (i image) flushesOf(r rig, c contestant) (verbs [2]string, err error) {
	var counts [2][]float64
	for n := range 7 {
		id := id(1<<24 + n)
		if c.before != nil {
			if err := c.before(id); err != nil {
				return verbs, err
			}
		}
		for v, make := range []func(string) call{c.add, c.del} {
			if make == nil {
				continue
			}
			if err := r.flushDisk(); err != nil {
				return verbs, err
			}
			before, err := i.flushes()
			if err != nil {
				return verbs, err
			}
			if _, _, err := make(id).run(); err != nil {
				return verbs, err
			}
			after, err := i.flushes()
			if err != nil {
				return verbs, err
			}
			counts[v] = append(counts[v], float64(after-before))
		}
		if c.after != nil {
			if err := c.after(id); err != nil {
				return verbs, err
			}
		}
	}
	for v := range verbs {
		verbs[v] = fmt.Sprintf("%.0f", median(counts[v]))
	}
	return verbs, nil
}
