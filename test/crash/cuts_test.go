package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// cutsPerLife is how often the power is cut before the file system is made anew.
const cutsPerLife = 10

// cuts cuts file systems off in mid-run until the time is out.
func cuts(t *testing.T, f filesystem, until time.Time, writers []*writer) report {
	dev, err := attach(f.image(t, "/run/disk"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	r := newReport(writers)
	for life := 0; life == 0 || time.Now().Before(until); life++ {
		if err := f.format(dev.Name()); err != nil {
			t.Fatal(err)
		}
		if err := f.mount(dev.Name(), "/run/mnt", ""); err != nil {
			t.Fatal(err)
		}
		held := make(map[*writer]attachments)
		for cut := 0; cut < cutsPerLife && (cut == 0 || time.Now().Before(until)); cut++ {
			var h history
			if err := runUntilCut(&h, "/run/mnt", writers, held); err != nil {
				t.Fatal(err)
			}
			if err := unmount("/run/mnt"); err != nil {
				t.Fatal(err)
			}
			if err := f.mount(dev.Name(), "/run/mnt", ""); err != nil {
				t.Fatal(err)
			}
			held = r.take(t, fmt.Sprintf("life %d, cut %d", life, cut), "/run/mnt", held, h.marks)
		}
		if err := unmount("/run/mnt"); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// runUntilCut runs the writers, and cuts the file system off under them.
func runUntilCut(h *history, root string, writers []*writer, held map[*writer]attachments) error {
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	done := make(chan error, 1)
	go func() { done <- run(writers, root, h, held, 0) }()
	// Some time after so many acknowledgements, since a busy machine is slow.
	enough := 1 + rand.N(8)
	for waiting := true; waiting; {
		select {
		case err := <-done:
			return fmt.Errorf("before the power cut: %w", err)
		case <-time.After(time.Millisecond):
		}
		count := h.acknowledged()
		waiting = false
		for _, w := range writers {
			waiting = waiting || count[w] == 0 || w.dir == journalDir && count[w] < enough
		}
	}
	time.Sleep(rand.N(10 * time.Millisecond))
	h.powerCut()
	cutErr := cutOff(dir)
	if err := <-done; err != nil {
		return err
	}
	return cutErr
}
