package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watched are the system calls that can touch a file, and what their arguments
// are: d and p a directory's descriptor and a path in it, p alone a path, f a
// descriptor, - nothing of interest. TestNothingIsOverlooked holds them against what strace sees.
var watched = map[int]struct{ name, args string }{
	unix.SYS_CLOSE:      {"close", "f"},
	unix.SYS_EPOLL_CTL:  {"epoll_ctl", "--f"},
	unix.SYS_FACCESSAT:  {"faccessat", "dp"},
	unix.SYS_FACCESSAT2: {"faccessat2", "dp"},
	unix.SYS_FALLOCATE:  {"fallocate", "f"},
	unix.SYS_FCHMOD:     {"fchmod", "f"},
	unix.SYS_FCHMODAT:   {"fchmodat", "dp"},
	unix.SYS_FCHOWN:     {"fchown", "f"},
	unix.SYS_FCNTL:      {"fcntl", "f"},
	unix.SYS_FDATASYNC:  {"fdatasync", "f"},
	unix.SYS_FLOCK:      {"flock", "f"},
	unix.SYS_FSTAT:      {"fstat", "f"},
	unix.SYS_FSTATFS:    {"fstatfs", "f"},
	unix.SYS_FSYNC:      {"fsync", "f"},
	unix.SYS_FTRUNCATE:  {"ftruncate", "f"},
	unix.SYS_GETDENTS64: {"getdents64", "f"},
	unix.SYS_LINKAT:     {"linkat", "dpdp"},
	unix.SYS_LSEEK:      {"lseek", "f"},
	unix.SYS_MKDIRAT:    {"mkdirat", "dp"},
	unix.SYS_NEWFSTATAT: {"newfstatat", "dp"},
	unix.SYS_OPENAT:     {"openat", "dp"},
	unix.SYS_PREAD64:    {"pread64", "f"},
	unix.SYS_PWRITE64:   {"pwrite64", "f"},
	unix.SYS_READ:       {"read", "f"},
	unix.SYS_READLINKAT: {"readlinkat", "dp"},
	unix.SYS_RENAMEAT:   {"renameat", "dpdp"},
	unix.SYS_RENAMEAT2:  {"renameat2", "dpdp"},
	unix.SYS_STATFS:     {"statfs", "p"},
	unix.SYS_STATX:      {"statx", "dp"},
	unix.SYS_SYMLINKAT:  {"symlinkat", "pdp"},
	unix.SYS_UNLINKAT:   {"unlinkat", "dp"},
	unix.SYS_WRITE:      {"write", "f"},
}

// call is a system call on a file below the watched directory.
type call struct {
	name  string
	paths []string // of its arguments, absolute; the last one is the one changed
	fd    int      // -1 where it takes none
	flags uint64   // of an openat
	fate  fate
}

func (c call) String() string { return c.name + " " + strings.Join(c.paths, ", ") }

// fate is what becomes of a call: it is made, fails instead, writes half only,
// or never comes back because its process is killed at it.
type fate struct {
	errno syscall.Errno
	short bool
	kill  bool
}

func (f fate) String() string {
	switch {
	case f.kill:
		return "SIGKILL"
	case f.short:
		return "short write"
	case f.errno != 0:
		return unix.ErrnoName(f.errno)
	}
	return "made"
}

// supervise runs cmd, and lets decide say what becomes of each of its calls on
// files below dir, in the order in which they are made. It returns the calls,
// and what cmd.Run would.
//
// The kernel stops the calling thread and tells us (SECCOMP_RET_USER_NOTIF), so
// the n-th call is the same one every time. strace -e inject counts for every
// thread on its own, and the Go scheduler moves a program between threads as
// it likes: of 30 runs of one ADD, 8 stayed on one.
func supervise(cmd *exec.Cmd, dir string, decide func(call) fate) ([]call, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "listener")
	defer unix.Close(ours)
	defer theirs.Close()
	cmd.Env = append(cmd.Environ(), targetEnv+"="+cmd.Path)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	listener, err := receive(ours)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seccomp listener: %w (Linux 5.19 is needed)", err), cmd.Wait())
	}
	s := supervisor{listener: listener, pid: cmd.Process.Pid, dir: dir, decide: decide}
	done := make(chan error)
	go func() { done <- s.serve() }()
	waitErr := cmd.Wait()
	if err := <-done; err != nil {
		return s.calls, fmt.Errorf("supervising: %w", err)
	}
	return s.calls, waitErr
}

type supervisor struct {
	listener int
	pid      int
	dir      string
	decide   func(call) fate
	calls    []call
}

// notification is struct seccomp_notif, response is struct seccomp_notif_resp.
type notification struct {
	id         uint64
	tid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// serve answers until no process that the filter was inherited by is left.
func (s *supervisor) serve() error {
	defer unix.Close(s.listener)
	for {
		fds := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return err
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			if fds[0].Revents&unix.POLLHUP != 0 {
				return nil
			}
			continue
		}
		var n notification
		if err := ioctl(s.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
			if err == unix.EINTR || err == unix.ENOENT { // killed meanwhile
				continue
			}
			return err
		}
		r := s.answer(n)
		if err := ioctl(s.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); err != nil && err != unix.ENOENT {
			return err
		}
	}
}

func (s *supervisor) answer(n notification) response {
	goOn := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	// The plugins that it calls inherit the filter, but are none of ours.
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", s.pid, n.tid)); err != nil {
		return goOn
	}
	c, ok := s.decode(n)
	if !ok {
		return goOn
	}
	c.fate = s.decide(c)
	s.calls = append(s.calls, c)
	switch {
	case c.fate.kill:
		_ = unix.Kill(s.pid, unix.SIGKILL)
	case c.fate.short:
		val, err := s.writeHalf(n)
		if err != nil {
			return response{id: n.id, errno: -int32(unix.EIO)}
		}
		return response{id: n.id, val: val}
	case c.fate.errno != 0:
		return response{id: n.id, errno: -int32(c.fate.errno)}
	}
	return goOn
}

// decode returns the call, and whether it is on a file below dir.
func (s *supervisor) decode(n notification) (c call, ours bool) {
	how := watched[int(n.nr)]
	c = call{name: how.name, fd: -1}
	base := fmt.Sprintf("/proc/%d/cwd", s.pid)
	for i, kind := range how.args {
		var path string
		switch kind {
		case '-':
			continue
		case 'f':
			c.fd = int(int32(n.args[i]))
			path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", s.pid, c.fd))
		case 'd':
			if fd := int32(n.args[i]); fd != unix.AT_FDCWD {
				base = fmt.Sprintf("/proc/%d/fd/%d", s.pid, fd)
			}
			continue
		case 'p':
			path = s.text(n.args[i])
			if !filepath.IsAbs(path) {
				in, _ := os.Readlink(base)
				path = filepath.Join(in, path)
			}
		}
		c.paths = append(c.paths, path)
		ours = ours || path == s.dir || strings.HasPrefix(path, s.dir+"/")
	}
	if c.name == "openat" {
		c.flags = n.args[2]
	}
	return c, ours
}

// text reads a string of the process.
func (s *supervisor) text(address uint64) string {
	b, _ := s.memory(address, unix.PathMax)
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

func (s *supervisor) memory(address, size uint64) ([]byte, error) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", s.pid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	b := make([]byte, size)
	n, err := mem.ReadAt(b, int64(address))
	return b[:n], err
}

// writeHalf makes half of the write n.
func (s *supervisor) writeHalf(n notification) (int64, error) {
	b, err := s.memory(n.args[1], n.args[2]/2)
	if err != nil {
		return 0, err
	}
	pidfd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(n.args[0]), 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	written, err := unix.Write(fd, b)
	return int64(written), err
}

// targetEnv names the program that this one becomes once it is supervised.
const targetEnv = "FAULTS_TARGET"

// becomeTarget puts the filter on this process, hands the listener to the
// supervisor, and becomes the program under test.
func becomeTarget(path string) error {
	runtime.LockOSThread() // the filter is the thread's, and exec leaves only this one
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for nr := range watched {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	env := os.Environ()
	// Without WAIT_KILLABLE_RECV a signal of the Go runtime's would make a
	// call that is being decided on again, and it would be counted twice.
	listener, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return err
	}
	unix.CloseOnExec(3)
	return unix.Exec(path, append([]string{path}, os.Args[1:]...), env)
}

func receive(socket int) (fd int, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, fmt.Errorf("none has come: %v", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
