package crash

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// The files that a disk's server shows. Any other name is a [state].
const (
	diskFile  = "disk"  // the disk, recorded from its first write on
	marksFile = "marks" // every write to it is a mark in the record
	logFile   = "log"   // the record, to be read
)

// imageVar, in the environment of the test binary, makes it a disk's server
// for the file that it names.
const imageVar = "CRASH_DISK"

// disk is the client's side of a server.
type disk struct {
	server *exec.Cmd
	dir    string
}

// startDisk starts the server of a disk that begins as the file image is. It
// has mounts of its own: it must not see what is mounted from its disk, or its
// death would wait for that to be unmounted, and that for an answer of the dead.
func startDisk(image string) (*disk, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), imageVar+"="+image)
	// No Pdeathsig: it goes by the thread, and ours come and go. The sandbox ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	dir, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the disk's server has not come up: %w", cmd.Wait())
	}
	return &disk{cmd, filepath.Join("/proc", fmt.Sprint(cmd.Process.Pid), "root", strings.TrimSpace(dir))}, nil
}

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

// stop ends the server. Whatever still waits for it gets an error.
func (d *disk) stop() {
	_ = d.server.Process.Kill()
	_ = d.server.Wait()
}

// serveDisk is the server. It ends only by being killed.
func serveDisk(image string) error {
	file, err := os.Open(image)
	if err != nil {
		return err
	}
	st, err := file.Stat()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/run", "disk")
	if err != nil {
		return err
	}
	r := &recording{image: file, size: st.Size(), blocks: make(map[int64][]version)}
	server, err := fs.Mount(dir, &root{recording: r}, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true,
		FsName:            "durable-args-crash",
		MaxWrite:          256 << 10, // more than that makes the kernel complain of a full pipe
	}})
	if err != nil {
		return fmt.Errorf("mounting FUSE: %w", err)
	}
	fmt.Println(dir)
	server.Wait()
	return nil
}

// step is one thing that happened to the disk.
type step struct {
	kind   byte // see below
	blocks int
}

const (
	wrote   = 'w'
	flushed = 'f'
	marked  = 'm'
)

// recording is a disk, with all that ever happened to it.
type recording struct {
	image io.ReaderAt
	size  int64

	mu     sync.RWMutex
	steps  []step
	blocks map[int64][]version // oldest first
}

// version is what a block became with a step.
type version struct {
	step int
	data []byte
}

// note appends a step, and what it writes.
func (r *recording) note(kind byte, data []byte, off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.steps)
	r.steps = append(r.steps, step{kind, len(data) / blockSize})
	data = append([]byte(nil), data...)
	for i := 0; i < len(data); i += blockSize {
		block := (off + int64(i)) / blockSize
		r.blocks[block] = append(r.blocks[block], version{n, data[i : i+blockSize]})
	}
}

// read fills dest with the block as the newest of the steps made it that
// counts.
func (r *recording) read(dest []byte, block int64, counts func(step int) bool) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	versions := r.blocks[block]
	for i := len(versions) - 1; i >= 0; i-- {
		if counts(versions[i].step) {
			copy(dest, versions[i].data)
			return nil
		}
	}
	_, err := r.image.ReadAt(dest, block*blockSize)
	return err
}

// state is what a power cut may leave of a disk.
type state struct {
	steps   int // how many steps have been taken
	pending int // the first step that is not known to be on the medium
	kept    string
	seed    uint64 // which of those
}

// What a power cut keeps of the pending writes.
const (
	all    = "all"
	none   = "none"
	some   = "some" // writes
	pieces = "torn" // blocks of writes
)

func (s state) String() string { return fmt.Sprintf("%d.%d.%s.%d", s.steps, s.pending, s.kept, s.seed) }

func parseState(name string) (s state, err error) {
	_, err = fmt.Sscanf(strings.ReplaceAll(name, ".", " "), "%d %d %s %d", &s.steps, &s.pending, &s.kept, &s.seed)
	return s, err
}

// keeps reports whether the block that a step wrote is on the medium.
func (s state) keeps(step int, block int64) bool {
	switch {
	case step < s.pending:
		return true
	case step >= s.steps || s.kept == none:
		return false
	case s.kept == all:
		return true
	case s.kept == some:
		block = 0
	}
	// A coin for each write or block, always the same one.
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, []uint64{s.seed, uint64(step), uint64(block)})
	return h.Sum64()>>32&1 == 1
}

// root is the server's directory.
type root struct {
	fs.Inode
	*recording
}

var _ fs.NodeLookuper = (*root)(nil)

func (r *root) Lookup(ctx context.Context, name string, _ *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n := &node{name: name, recording: r.recording}
	if name != diskFile && name != marksFile && name != logFile {
		if _, err := parseState(name); err != nil {
			return nil, syscall.ENOENT
		}
	}
	return r.NewInode(ctx, n, fs.StableAttr{Mode: syscall.S_IFREG}), 0
}

// node is a file of the server.
type node struct {
	fs.Inode
	*recording
	name string
}

var (
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
)

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o600
	if n.name != marksFile && n.name != logFile {
		out.Size = uint64(n.size)
	}
	return 0
}

// Open gives every opener of a state a disk of its own.
func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	var h fs.FileHandle
	switch n.name {
	case diskFile:
		h = &liveDisk{n.recording}
	case marksFile:
		h = &marks{n.recording}
	case logFile:
		h = n.log()
	default:
		s, err := parseState(n.name)
		if err != nil {
			return nil, 0, syscall.ENOENT
		}
		h = &stateDisk{recording: n.recording, state: s, written: make(map[int64][]byte)}
	}
	return h, fuse.FOPEN_DIRECT_IO, 0
}

// eachBlock calls f for every block of data. The kernel sends whole ones only.
func eachBlock(data []byte, off int64, f func(data []byte, block int64) error) syscall.Errno {
	if off%blockSize != 0 || len(data)%blockSize != 0 {
		return syscall.EINVAL
	}
	for i := 0; i < len(data); i += blockSize {
		if f(data[i:i+blockSize], off/blockSize+int64(i/blockSize)) != nil {
			return syscall.EIO
		}
	}
	return 0
}

// liveDisk is the disk while it is being recorded.
type liveDisk struct{ *recording }

func (d *liveDisk) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultData(dest), eachBlock(dest, off, func(dest []byte, block int64) error {
		return d.read(dest, block, func(int) bool { return true })
	})
}

func (d *liveDisk) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	errno := eachBlock(data, off, func([]byte, int64) error { return nil })
	if errno == 0 {
		d.note(wrote, data, off)
	}
	return uint32(len(data)), errno
}

func (d *liveDisk) Fsync(context.Context, uint32) syscall.Errno {
	d.note(flushed, nil, 0)
	return 0
}

// marks puts what a test has to say in the record.
type marks struct{ *recording }

func (m *marks) Write(_ context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
	m.note(marked, nil, 0)
	return uint32(len(data)), 0
}

// log is the record as text, a line for each step.
func (r *recording) log() fs.FileHandle {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var b strings.Builder
	for _, s := range r.steps {
		fmt.Fprintf(&b, "%c %d\n", s.kind, s.blocks)
	}
	return &text{b.String()}
}

type text struct{ s string }

func (t *text) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, _ := strings.NewReader(t.s).ReadAt(dest, off)
	return fuse.ReadResultData(dest[:n]), 0
}

// readLog reads the record.
func (d *disk) readLog() ([]step, error) {
	data, err := os.ReadFile(d.path(logFile))
	if err != nil {
		return nil, err
	}
	var steps []step
	for line := range strings.Lines(string(data)) {
		var s step
		if _, err := fmt.Sscanf(line, "%c %d\n", &s.kind, &s.blocks); err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// stateDisk is a disk that begins as a power cut has left it. What is written
// to it stays in memory, for as long as it is open.
type stateDisk struct {
	*recording
	state
	mu      sync.Mutex
	written map[int64][]byte
}

func (d *stateDisk) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fuse.ReadResultData(dest), eachBlock(dest, off, func(dest []byte, block int64) error {
		if data, ok := d.written[block]; ok {
			copy(dest, data)
			return nil
		}
		return d.read(dest, block, func(step int) bool { return d.keeps(step, block) })
	})
}

func (d *stateDisk) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return uint32(len(data)), eachBlock(data, off, func(data []byte, block int64) error {
		d.written[block] = append([]byte(nil), data...)
		return nil
	})
}

func (d *stateDisk) Fsync(context.Context, uint32) syscall.Errno { return 0 }

// statesOf lists what a power cut may leave, for every point of a record: each
// disk once, together with as much of the record as can have come before.
func statesOf(steps []step, seed uint64) []state {
	var states []state
	pending, writes, blocks := 0, 0, 0
	for n := 0; n <= len(steps); n++ {
		end := n == len(steps)
		if end || steps[n].kind != marked {
			s := state{n, pending, all, seed + uint64(n)}
			states = append(states, s)
			keep := func(kept string) { s.kept = kept; states = append(states, s) }
			if writes > 0 && (end || steps[n].kind == flushed) {
				keep(none)
			}
			if writes > 1 {
				keep(some)
			}
			if blocks > 1 {
				keep(pieces)
			}
		}
		switch {
		case end:
		case steps[n].kind == flushed:
			pending, writes, blocks = n, 0, 0
		case steps[n].kind == wrote:
			writes, blocks = writes+1, blocks+steps[n].blocks
		}
	}
	return states
}

// marksBefore returns how many marks a record has before a step.
func marksBefore(steps []step, n int) int {
	var at []int
	for i, s := range steps {
		if s.kind == marked {
			at = append(at, i)
		}
	}
	return sort.SearchInts(at, n)
}
