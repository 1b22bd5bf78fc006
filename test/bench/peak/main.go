// Command peak runs COMMAND and prints to descriptor 3 how much memory it had at
// most, in KiB. It has to be a small program: Linux counts a process from fork
// on, so that what a large one starts looks as large as that one.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	process, err := os.StartProcess(os.Args[1], os.Args[1:], &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	state, err := process.Wait()
	if err != nil || !state.Success() {
		fmt.Fprintln(os.Stderr, state, err)
		os.Exit(1)
	}
	fmt.Fprint(os.NewFile(3, "3"), state.SysUsage().(*syscall.Rusage).Maxrss)
}
