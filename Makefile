# Everything that CI runs, and everything that the README names.

export CGO_ENABLED = 0
# Where Go's own archive goes; root's PATH seldom has it.
export PATH := $(PATH):/usr/local/go/bin
# Root often builds in a clone that is a user's.
GIT     := git -c safe.directory='$(CURDIR)'
VERSION := $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo unknown)
DESTDIR ?=
BINDIR  ?= /opt/cni/bin
SBINDIR ?= /usr/local/sbin
UNITDIR ?= /usr/local/lib/systemd/system
UNITS   := $(wildcard conf-examples/systemd/*)
EXAMPLES := $(shell find conf-examples -type f)
GOFILES := $(wildcard $(shell $(GIT) ls-files --cached --others --exclude-standard '*.go' go.mod go.sum))

# What a release is built for, and the time that its files bear: the commit's.
ARCHES ?= amd64 arm64 ppc64le riscv64 s390x
SOURCE_DATE_EPOCH ?= $(shell $(GIT) log -1 --format=%ct 2>/dev/null || echo 0)
ARCHIVES := $(foreach arch,$(ARCHES),bin/release/durable-args-linux-$(arch)-$(VERSION).tgz)

# How long make crash takes.
CRASH_BUDGET ?= 3m

# How often make crash-vm cuts the power.
VM_CUTS ?= 5

# How long make fuzz takes for each target, and on how many processors.
FUZZTIME  ?= 10m
FUZZPROCS ?= $(shell nproc)

.PHONY: build release tools demo test fuzz crash crash-vm test-arm64 faults load test-runtimes test-kubelet bench lint install clean

build: bin/durable-args bin/durable-argsctl

PACKAGE_durable-args    := ./plugins/meta/durable-args
PACKAGE_durable-argsctl := ./plugins/meta/durable-args/ctl
LDFLAGS := -s -w -X main.version=$(VERSION)

bin/durable-args bin/durable-argsctl: $(GOFILES)
	go build -trimpath -ldflags '$(LDFLAGS)' -o $@ $(PACKAGE_$(@F))

# One archive for each architecture, and their checksums. The same commit, built
# with the same Go, is the same bytes wherever it is built.
release: $(ARCHIVES)
	cd bin/release && sha256sum $(notdir $(ARCHIVES)) >SHA256SUMS

# Git's revision stays out of the programs, or a build from an archive of the
# sources would differ. What the SBOM tool finds must not depend on the network.
bin/release/durable-args-linux-%-$(VERSION).tgz: DIR = $@.d
bin/release/durable-args-linux-%-$(VERSION).tgz: $(GOFILES) $(EXAMPLES) LICENSE README.md bin/cyclonedx-gomod
	rm -rf $(DIR) && mkdir -p $(DIR)
	cp -R LICENSE README.md conf-examples $(DIR)
	@set -e; $(foreach program,durable-args durable-argsctl, \
		GOOS=linux GOARCH=$* go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(DIR)/$(program) $(PACKAGE_$(program)); \
		GOPROXY=off bin/cyclonedx-gomod bin -json -std -licenses -noserial -notimestamp -version $(VERSION) \
			-output $(DIR)/$(program).cdx.json $(DIR)/$(program) 2>$@.log || { cat $@.log >&2; exit 1; }; )
	tar -C $(DIR) --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		--mtime=@$(SOURCE_DATE_EPOCH) -cf - . | gzip -9n >$@.new
	rm -rf $(DIR) $@.log && mv $@.new $@

# A module of its own: it needs a hundred others, which the tests do not.
bin/cyclonedx-gomod: $(wildcard test/cyclonedx/go.*)
	go build -C test/cyclonedx -trimpath -buildvcs=false -o $(CURDIR)/$@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

# What tests and demo drive: the reference plugins and cnitool, as test/go.mod
# pins them, the recorder, and oldcni: the cnitool of containerd 1.6's libcni.
tools: bin/cni/.installed

bin/cni/.installed: $(wildcard test/go.* test/libcni112/go.*) $(wildcard test/cmd/*/*.go)
	cd test && GOBIN=$(CURDIR)/bin/cni go install $$(go list tool | grep -v staticcheck) ./cmd/...
	go build -C test/libcni112 -o $(CURDIR)/bin/cni/oldcni github.com/containernetworking/cni/cnitool
	touch $@

demo: build tools
	@test/demo/demo.sh

test: build tools
	CGO_ENABLED=1 go test -race -timeout 30m ./...
	@# Never from Go's test cache, which does not know that these run bin/.
	cd test && go test -count=1 -timeout 30m $$(go list ./... | grep -v /crash$$)
	@$(MAKE) --no-print-directory fuzz FUZZTIME=1s
	@$(MAKE) --no-print-directory crash CRASH_BUDGET=25s

# What no one has thought of, for every fuzz target there is.
fuzz:
	@FUZZTIME=$(FUZZTIME) FUZZPROCS=$(FUZZPROCS) test/fuzz/fuzz.sh

# Power cuts, and a table of what they left.
crash: build tools
	cd test/crash && CRASH_BUDGET=$(CRASH_BUDGET) go test -count=1 -timeout 0

# The same with a whole machine, in qemu. Without its kernel, the test says so.
crash-vm: build tools
	-$(MAKE) bin/vm/amd64
	cd test && VM_CUTS=$(VM_CUTS) go test -count=1 -v -timeout 0 -run Power ./vm

# The unit tests on an arm64 machine, in qemu.
test-arm64: build tools
	-$(MAKE) bin/vm/arm64
	cd test && VM_ARM64=1 go test -count=1 -v -timeout 0 -run Arm64 ./vm

# Debian's kernel and busybox for an architecture, unpacked but not installed.
bin/vm/%: OPTIONS = -q -o APT::Architecture=$* -o APT::Architectures=$* -o Dir::State::lists=$(CURDIR)/$@.new/lists \
	-o Dir::State::status=/dev/null -o Dir::Cache=$(CURDIR)/$@.new/cache -o APT::Sandbox::User=root
bin/vm/%:
	rm -rf $@.new && mkdir -p $@.new/lists/partial $@.new/cache/archives/partial
	apt-get $(OPTIONS) update
	cd $@.new && apt-get $(OPTIONS) download busybox-static $$(apt-cache $(OPTIONS) depends linux-image-cloud-$* | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
	for package in $@.new/*.deb; do dpkg-deb -x $$package $@.new; done
	rm -rf $@.new/lists $@.new/cache $@.new/*.deb && mv $@.new $@

# Every fault at every system call.
faults: build tools
	cd test && FAULTS=full go test -count=1 -v -timeout=3h -parallel=6 -run='^TestEveryFailingSystemCall$$' ./faults | grep --line-buffered -v '^ *=== '

# A busy minute.
load: build tools
	cd test && LOAD=1m go test -count=1 -v ./load

# Real container runtimes. Not part of test: it takes its time. What cannot be
# built or installed is skipped, and the test says so.
test-runtimes: build tools
	-$(MAKE) $(RUNTIMES)
	-test/runtimes/packages
	cd test/runtimes && go test -count=1 -v -timeout 60m . -runtimes

# The same for a kubelet with containerd 2.4, which takes ten minutes to build, once.
test-kubelet: build tools
	-$(MAKE) $(RUNTIMES) bin/runtimes/kubelet
	-test/runtimes/packages
	cd test/runtimes && go test -count=1 -v -timeout 60m . -runtimes -run='^TestFaults$$/^kubelet'

bin/runtimes/kubelet: $(wildcard test/kubelet/go.*)
	go build -C test/kubelet -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kubelet

# What Debian does not have of them. It takes minutes, once.
CONTAINERD := v2.4.2
CRICTL     := v1.37.0
RUNTIMES   := bin/runtimes/.containerd-$(CONTAINERD) bin/runtimes/.crictl-$(CRICTL)

bin/runtimes/.containerd-$(CONTAINERD): PACKAGES = $(addsuffix @$(CONTAINERD),$(addprefix github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr))
bin/runtimes/.crictl-$(CRICTL): PACKAGES = sigs.k8s.io/cri-tools/cmd/crictl@$(CRICTL)
$(RUNTIMES):
	cd / && CGO_ENABLED=1 GOBIN=$(CURDIR)/bin/runtimes go install $(PACKAGES)
	touch $@

# What a call costs. BENCH=full takes a quarter of an hour, and writes the tables
# and charts in test/bench.
bench: build tools
	cd test && GOBIN=$(CURDIR)/bin/bench go install -trimpath -ldflags '-s -w' ./bench/...
	bin/bench/bench $(CURDIR)/bin $(CURDIR)/test/bench

lint:
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not formatted: $$files" >&2; exit 1; }
	go vet ./...
	cd test && go vet ./...
	go build -C test -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck ./...
	cd test && ../bin/staticcheck ./...

install: build
	install -D -m 755 bin/durable-args $(DESTDIR)$(BINDIR)/durable-args
	install -D -m 755 bin/durable-argsctl $(DESTDIR)$(SBINDIR)/durable-argsctl
	install -d $(DESTDIR)$(UNITDIR)
	for unit in $(UNITS); do \
		sed 's|/usr/local/sbin|$(SBINDIR)|' $$unit >$(DESTDIR)$(UNITDIR)/$${unit##*/}; \
	done

clean:
	rm -rf bin
