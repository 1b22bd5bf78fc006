// Command floor does the least that makes a new file durable: it writes FILE,
// as long as a journal's line is, and flushes it and its directory.
package main

import (
	"os"
	"path/filepath"
	"syscall"
)

const size = 1500 // of the line that an ADD of the conflists measured here writes

func main() {
	file := os.Args[1]
	fd, err := syscall.Open(file, syscall.O_CREAT|syscall.O_EXCL|syscall.O_APPEND|syscall.O_WRONLY|syscall.O_CLOEXEC, 0o600)
	try(err)
	_, err = syscall.Write(fd, make([]byte, size))
	try(err)
	try(syscall.Fdatasync(fd))
	dir, err := syscall.Open(filepath.Dir(file), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	try(err)
	try(syscall.Fsync(dir))
}

func try(err error) {
	if err != nil {
		panic(err)
	}
}
