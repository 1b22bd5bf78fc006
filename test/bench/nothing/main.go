// Command nothing is a Go program that does nothing: what it costs is the price
// of a process.
package main

func main() {}
