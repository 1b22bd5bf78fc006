module github.com/durable-args/durable-args

go 1.26.0

require (
	// Not 1.3.1: its pkg/invoke imports OpenTelemetry, and with that net/http and
	// crypto/tls, which every call of the plugin would pay for at its start.
	github.com/containernetworking/cni v1.3.0
	github.com/spf13/cobra v1.10.2
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.50.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
)
