// The libcni of containerd 1.6, driven by the cnitool of its time.
module github.com/durable-args/durable-args/test/libcni112

go 1.26.0

tool github.com/containernetworking/cni/cnitool

require github.com/containernetworking/cni v1.1.2 // indirect
