package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAnAttachmentThatAnotherHolds(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	mustAppend(t, store, testKey, Add{})
	held := mustLock(t, store, testKey)

	start := time.Now()
	f, err := lock(held.dir, testKey.name(), unix.O_RDWR, start)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), held.Path()) {
		t.Errorf("locking it until now: %v, %v; want it locked, and the message to name %s", f, err, held.Path())
	}
	if waited := time.Since(start); waited > 5*time.Second {
		t.Errorf("giving up took %s", waited)
	}
	// Another attachment is free.
	mustAppend(t, store, Key{"web", "c2", "eth0"}, Add{})
}

// Whoever waits for the lock acts on what the file is by then.
func TestWhoeverWaitedActsOnWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		meantime func(f *File) error
		lock     error
		adds     int // once another has been appended
	}{
		{"the holder changed nothing", func(f *File) error { return nil }, nil, 2},
		{"the holder appended", func(f *File) error { return f.Append(Add{}) }, nil, 3},
		{"the holder removed the file", (*File).Remove, fs.ErrNotExist, 1},
		{"the holder set the file aside", func(f *File) error { _, err := f.SetAside(); return err }, fs.ErrNotExist, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			store, _ := newStore(t)
			mustAppend(t, store, testKey, Add{})
			held := mustLock(t, store, testKey)
			locked := make(chan error)
			go func() {
				f, err := store.Lock(testKey)
				if err == nil {
					err = f.Close()
				}
				locked <- err
			}()
			select {
			case err := <-locked:
				t.Fatalf("the lock was not waited for: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			if err := row.meantime(held); err != nil {
				t.Fatal(err)
			}
			held.Close()
			if err := <-locked; !errors.Is(err, row.lock) {
				t.Errorf("Lock: %v, want %v", err, row.lock)
			}
			mustAppend(t, store, testKey, Add{})
			if rec := mustLock(t, store, testKey).Record(); len(rec.Adds) != row.adds || rec.Damaged != nil {
				t.Errorf("the record is %+v, want %d adds", rec, row.adds)
			}
		})
	}
}

// What Append has acknowledged is found, once, by whoever removes the file: it
// is never written to a file that has lost its name.
func TestNothingIsLostWhileOthersRemove(t *testing.T) {
	t.Parallel()
	const writers, entries, removers = 50, 6, 4
	keys := []Key{testKey, {"web", "c2", "eth0"}}
	unsynced := fault{call: unix.SYS_FSYNC, errno: unix.EIO}
	for _, row := range []struct {
		name string
		odd  []fault // what every other writer suffers
		even []fault
	}{
		{"with O_TMPFILE", nil, nil},
		{"without O_TMPFILE", []fault{noTmpfile}, []fault{noTmpfile}},
		{"while others take back what did not reach the disk", []fault{unsynced}, nil},
		{"the same without O_TMPFILE", []fault{noTmpfile, unsynced}, []fault{noTmpfile}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			store, dir := newStore(t)
			mustAppend(t, store, keys[0], Replayed{}) // so that the network is there
			var mu sync.Mutex
			found, refused := make(map[string]int), make(map[string]int)
			collect := func(rec Record) {
				mu.Lock()
				defer mu.Unlock()
				for _, a := range rec.Attempts {
					found[a.Plugin]++
				}
				if rec.Damaged != nil {
					t.Errorf("lines %v of %s are damaged", rec.Damaged, rec.Key)
				}
			}

			var writing, removing sync.WaitGroup
			stop := make(chan struct{})
			for i := range writers {
				writing.Go(func() {
					if i%2 == 0 {
						breakThread(t, row.even...)
					} else {
						breakThread(t, row.odd...)
					}
					store, err := Create(dir)
					if err != nil {
						t.Error(err)
						return
					}
					defer store.Close()
					for n := range entries {
						id := fmt.Sprintf("%d-%d", i, n)
						if err := store.Append(keys[n%len(keys)], Attempt{Plugin: id}); errors.Is(err, unix.EIO) {
							mu.Lock()
							refused[id] = 1
							mu.Unlock()
						} else if err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range removers {
				removing.Go(func() {
					store, err := Create(dir)
					if err != nil {
						t.Error(err)
						return
					}
					defer store.Close()
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						f, err := store.Lock(keys[n%len(keys)])
						if errors.Is(err, fs.ErrNotExist) {
							runtime.Gosched()
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						collect(f.Record())
						if err := f.Remove(); err != nil {
							t.Error(err)
						}
						f.Close()
					}
				})
			}
			writing.Wait()
			close(stop)
			removing.Wait()

			for _, key := range keys {
				if f, err := store.Lock(key); err == nil {
					collect(f.Record())
					f.Close()
				} else if !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
			for i := range writers {
				for n := range entries {
					id := fmt.Sprintf("%d-%d", i, n)
					if found[id]+refused[id] != 1 {
						t.Errorf("entry %s: refused %d times, found %d times", id, refused[id], found[id])
					}
				}
			}
		})
	}
}

// Processes that are killed lose nothing that they have acknowledged, and hold
// nobody up.
func TestKilledProcesses(t *testing.T) {
	const variable = "JOURNAL_TEST_WRITE_TO"
	if dir := os.Getenv(variable); dir != "" {
		store, err := Create(dir)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			id := fmt.Sprintf("%d-%d", os.Getpid(), n)
			for _, key := range []Key{testKey, {"web", "c" + id, "eth0"}} {
				mustAppend(t, store, key, Add{Path: id})
				fmt.Printf("ack %s %s\n", key.ContainerID, id)
			}
		}
	}
	t.Parallel()
	// The kernel kills the writers when the thread that started them ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	store, dir := newStore(t)

	acks := make(map[string][]string) // by container ID
	var mu sync.Mutex
	var reading sync.WaitGroup
	var writers []*exec.Cmd
	for range 8 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledProcesses$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, cmd)
		reading.Go(func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				// The last line may have been cut short.
				if words := strings.Fields(s.Text()); len(words) == 3 && words[0] == "ack" {
					mu.Lock()
					acks[words[1]] = append(acks[words[1]], words[2])
					mu.Unlock()
				}
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		mu.Lock()
		n := len(acks)
		mu.Unlock()
		if n > 50 {
			break
		}
		if time.Now().After(deadline) {
			t.Error("the processes do not write")
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, cmd := range writers {
		cmd.Process.Kill()
	}
	reading.Wait()
	for _, cmd := range writers {
		cmd.Wait()
	}

	for _, id := range slices.Sorted(maps.Keys(acks)) {
		f, err := store.Lock(Key{"web", id, "eth0"})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, path := range acks[id] {
			if !slices.ContainsFunc(f.Record().Adds, func(a Add) bool { return a.Path == path }) {
				t.Errorf("entry %s of container %s was acknowledged, and is lost", path, id)
			}
		}
		f.Close()
	}
	mustAppend(t, store, testKey, Add{Path: "/after"})
	if add := mustLock(t, store, testKey).Record().Newest(); add.Path != "/after" {
		t.Errorf("the newest add is %+v", add)
	}
}
