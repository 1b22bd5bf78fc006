package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// opsPerWorker makes about thirty acknowledgements of the plugin's a record.
	opsPerWorker = 10
	// atLeast is how many states of a record are looked at even if time is out.
	atLeast = 10
	// stuck is when a mount that does not come back is given up. Its disk's
	// server is then killed, which gives it an error.
	stuck = 2 * time.Minute
)

// states records the disk under short runs, and looks at what a power cut can
// leave of it, until the time is out.
func states(t *testing.T, f filesystem, until time.Time, writers []*writer) report {
	r := newReport(writers)
	for n := 0; n == 0 || time.Now().Before(until); n++ {
		image := f.image(t, fmt.Sprintf("/run/disk%d", n))
		if err := f.format(image); err != nil {
			t.Fatal(err)
		}
		d, err := startDisk(image)
		if err != nil {
			t.Fatal(err)
		}
		err = explore(t, f, d, until, r)
		d.stop()
		if err := errors.Join(err, os.Remove(image)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// explore records one run, and looks at its states in no order.
func explore(t *testing.T, f filesystem, d *disk, until time.Time, r report) error {
	h, err := record(f, d, r)
	if err != nil {
		return err
	}
	steps, err := d.readLog()
	if err != nil {
		return err
	}
	all := statesOf(steps, rand.Uint64())
	// In no order, since the time may not do for all of them; but first the one
	// after the last step, when most has been acknowledged.
	slices.Reverse(all)
	rand.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
	todo := make(chan state, len(all))
	for _, s := range all {
		todo <- s
	}
	close(todo)
	var done atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, runtime.NumCPU())
	for i := range errs {
		wg.Go(func() {
			dir := fmt.Sprintf("/run/state%d", i)
			for s := range todo {
				errs[i] = d.guard(func() error {
					return f.withState(d, s, dir, func() {
						r.take(t, s.String(), dir, nil, h.marks[:marksBefore(steps, s.steps)])
					})
				})
				if errs[i] != nil || done.Add(1) > atLeast && time.Now().After(until) {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// record runs the writers on a disk.
func record(f filesystem, d *disk, r report) (*history, error) {
	const dir = "/run/recorded"
	if err := f.mountDisk(d.path(diskFile), dir); err != nil {
		return nil, err
	}
	marks, err := os.OpenFile(d.path(marksFile), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer marks.Close()
	h := &history{tell: func() error {
		_, err := marks.Write([]byte{marked})
		return err
	}}
	var writers []*writer
	for w := range r {
		writers = append(writers, w)
	}
	err = d.guard(func() error { return run(writers, dir, h, nil, opsPerWorker) })
	return h, errors.Join(err, unmount(dir))
}

// withState mounts a state, calls look, and unmounts it.
func (f filesystem) withState(d *disk, s state, dir string, look func()) error {
	if err := f.mountDisk(d.path(s.String()), dir); err != nil {
		return fmt.Errorf("state %s: %w", s, err)
	}
	look()
	return unmount(dir)
}

// mountDisk mounts a file of a disk's server.
func (f filesystem) mountDisk(path, dir string) error {
	dev, err := attach(path, unix.LO_FLAGS_DIRECT_IO)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	defer dev.Close()
	return f.mount(dev.Name(), dir, f.options)
}

// guard calls f, and kills the server if it gets stuck.
func (d *disk) guard(f func() error) error {
	watchdog := time.AfterFunc(stuck, func() { _ = d.server.Process.Kill() })
	defer watchdog.Stop()
	return f()
}
