package crash

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// The files that a disk's server shows.
const (
	diskFile  = "disk"  // the disk; every write and flush of it is recorded
	marksFile = "marks" // every write to it is a mark in the record
)

// imageVar, in the environment of the test binary, makes it a disk's server
// for the file that it names.
const imageVar = "CRASH_DISK"

// recordOf names the file with the record of a disk.
func recordOf(image string) string { return image + ".record" }

// disk is the client's side of a server.
type disk struct {
	server *exec.Cmd
	dir    string
}

// startDisk starts the server of a disk that begins as the file image is, which
// it does not change. The server has mounts of its own: it must not see what is
// mounted from its disk, or its death would wait for that to be unmounted, and
// that for an answer of the dead.
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
	record, err := os.Create(recordOf(image))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/run", "disk")
	if err != nil {
		return err
	}
	s := &served{image: file, size: st.Size(), record: record, blocks: make(map[int64][]byte)}
	server, err := fs.Mount(dir, &root{served: s}, &fs.Options{MountOptions: fuse.MountOptions{
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

// served is a disk in its server.
type served struct {
	image *os.File
	size  int64

	mu     sync.Mutex
	record *os.File
	blocks map[int64][]byte // those that were written
}

// note records a step; see [readRecord].
func (s *served) note(kind byte, data []byte, off int64) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := fmt.Appendf(nil, "%c %d %d\n", kind, off, len(data))
	if _, err := s.record.Write(append(b, data...)); err != nil {
		return syscall.EIO
	}
	data = append([]byte(nil), data...)
	for i := 0; i < len(data); i += blockSize {
		s.blocks[(off+int64(i))/blockSize] = data[i : i+blockSize]
	}
	return 0
}

// root is the server's directory.
type root struct {
	fs.Inode
	*served
}

func (r *root) OnAdd(ctx context.Context) {
	r.AddChild(diskFile, r.NewPersistentInode(ctx, &liveDisk{served: r.served}, fs.StableAttr{}), false)
	r.AddChild(marksFile, r.NewPersistentInode(ctx, &marks{served: r.served}, fs.StableAttr{}), false)
}

// liveDisk is the disk as a file, without any cache above it.
type liveDisk struct {
	fs.Inode
	*served
}

var (
	_ fs.NodeOnAdder   = (*root)(nil)
	_ fs.NodeGetattrer = (*liveDisk)(nil)
	_ fs.NodeOpener    = (*liveDisk)(nil)
	_ fs.NodeReader    = (*liveDisk)(nil)
	_ fs.NodeWriter    = (*liveDisk)(nil)
	_ fs.NodeFsyncer   = (*liveDisk)(nil)
	_ fs.NodeOpener    = (*marks)(nil)
	_ fs.NodeWriter    = (*marks)(nil)
)

func (d *liveDisk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o600, uint64(d.size)
	return 0
}

func (d *liveDisk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (d *liveDisk) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.image.ReadAt(dest, off)
	if err != nil && n < len(dest) || off%blockSize != 0 {
		return nil, syscall.EIO
	}
	for i := 0; i < len(dest); i += blockSize {
		copy(dest[i:], d.blocks[(off+int64(i))/blockSize])
	}
	return fuse.ReadResultData(dest), 0
}

func (d *liveDisk) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if off%blockSize != 0 || len(data)%blockSize != 0 {
		return 0, syscall.EINVAL // the loop device's blocks are ours
	}
	return uint32(len(data)), d.note(wrote, data, off)
}

func (d *liveDisk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return d.note(flushed, nil, 0)
}

// marks puts what a test has to say in the record.
type marks struct {
	fs.Inode
	*served
}

func (m *marks) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (m *marks) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	return uint32(len(data)), m.note(marked, nil, 0)
}
