package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// opsPerWorker makes about thirty acknowledgements of the plugin's a record.
	opsPerWorker = 5
	// atLeast is how many states of a record are looked at even if time is out.
	atLeast = 10
	// stuck is when a recording that does not end is given up. Its disk's server
	// is then killed, which ends it with an error.
	stuck = 5 * time.Minute
)

// states records the disk under short runs, and looks at what a power cut can
// leave of it, until the time is out.
func states(t *testing.T, f filesystem, until time.Time, writers []*writer) report {
	r := newReport(writers)
	for n := 0; n == 0 || time.Now().Before(until); n++ {
		image := f.image(t, "/run/image")
		if err := f.format(image); err != nil {
			t.Fatal(err)
		}
		h, err := record(f, image, writers)
		if err != nil {
			t.Fatal(err)
		}
		if err := explore(t, f, image, h, until, r); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// record runs the writers on a disk that begins as image is.
func record(f filesystem, image string, writers []*writer) (*history, error) {
	d, err := startDisk(image)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	watchdog := time.AfterFunc(stuck, func() { _ = d.server.Process.Kill() })
	defer watchdog.Stop()

	const dir = "/run/recorded"
	if err := f.mountFile(d.path(diskFile), dir, unix.LO_FLAGS_DIRECT_IO); err != nil {
		return nil, err
	}
	marks, err := os.OpenFile(d.path(marksFile), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(err, unmount(dir))
	}
	defer marks.Close()
	h := &history{tell: func() error {
		_, err := marks.Write([]byte{marked})
		return err
	}}
	err = run(writers, dir, h, nil, opsPerWorker)
	return h, errors.Join(err, unmount(dir))
}

// explore looks at the states of a record, several at once.
func explore(t *testing.T, f filesystem, image string, h *history, until time.Time, r report) error {
	steps, err := readRecord(image)
	if err != nil {
		return err
	}
	begin, err := readBlocks(image)
	if err != nil {
		return err
	}
	all := statesOf(steps, rand.Uint64())
	// In no order, since the time may not do for all of them; but first the one
	// after the last step, when most has been acknowledged.
	slices.Reverse(all)
	rand.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })

	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, f.atOnce())
	for i := range errs {
		wg.Go(func() {
			disk, dir := fmt.Sprintf("/run/state%d.disk", i), fmt.Sprintf("/run/state%d", i)
			for {
				n := int(next.Add(1)) - 1
				if n >= len(all) || n >= atLeast && time.Now().After(until) {
					return
				}
				s := all[n]
				err := s.build(disk, f.size, begin, steps)
				if err == nil {
					err = f.mountFile(disk, dir, 0)
				}
				if err == nil {
					r.take(t, s.String(), dir, nil, h.marks[:s.marks])
					err = unmount(dir)
				}
				if err != nil {
					errs[i] = fmt.Errorf("%s: %w", s, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mountFile mounts a file by way of a loop device that goes with the mount.
func (f filesystem) mountFile(path, dir string, flags uint32) error {
	dev, err := attach(path, flags)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	defer dev.Close()
	return f.mount(dev.Name(), dir, f.options)
}
