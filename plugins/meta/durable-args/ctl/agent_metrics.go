package main

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
)

// counts are what the journal holds, by states that may overlap.
type counts struct {
	networks                                        map[string]int
	stale, debts, damaged, newer, unreadable, aside int
}

func (c counts) all() (n int) {
	for _, of := range c.networks {
		n += of
	}
	return n
}

// count reads the whole journal: a small file for each attachment.
func (n *node) count() (counts, error) {
	c := counts{networks: make(map[string]int)}
	store, err := journal.Open(n.dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, needsRoot(err)
	}
	defer store.Close()
	keys, err := allKeys(store)
	for _, row := range readAll(store, keys) {
		if row == nil {
			continue
		}
		c.networks[row.Network]++
		if row.NetNS == netnsGone || row.NetNS == netnsBeforeBoot {
			c.stale++
		}
		if row.Debt != nil {
			c.debts++
		}
		if row.Error != "" {
			c.unreadable++
		}
		c.damaged += len(row.DamagedLines)
		c.newer += row.UnknownEntries
	}
	aside, _ := filepath.Glob(filepath.Join(n.dataDir, ".corrupt", "*", "*"))
	c.aside = len(aside)
	return c, err
}

// agentMetrics are what the agent tells of itself and, at each scrape, of the
// journal.
type agentMetrics struct {
	node       *node
	registry   *prometheus.Registry
	replays    *prometheus.CounterVec
	repairs    *prometheus.CounterVec
	insertions prometheus.Counter
	backoff    *prometheus.GaugeVec
	swept      prometheus.Gauge
	ready      atomic.Bool
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("durable_args_"+name, help, labels, nil)
}

var (
	attachmentsDesc = describe("attachments", "Attachments in the journal.", "network")
	staleDesc       = describe("stale_attachments", "Attachments whose network namespace no longer exists.")
	debtsDesc       = describe("debts", "Attachments whose replay has failed.")
	damagedDesc     = describe("damaged_entries", "Lines in the journal whose checksum is wrong.")
	newerDesc       = describe("newer_entries", "Journal entries of a newer version, which are kept.")
	unreadableDesc  = describe("unreadable_attachments", "Attachments whose journal file cannot be read.")
	asideDesc       = describe("corrupt_files", "Journal files set aside because no entry could be read.")
	journalDesc     = describe("journal_readable", "Whether the whole journal could be read (1) or not (0).")
)

func newAgentMetrics(n *node) *agentMetrics {
	m := &agentMetrics{
		node:       n,
		registry:   prometheus.NewRegistry(),
		replays:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "durable_args_replays_total", Help: "Replays of stale attachments, by outcome."}, []string{"outcome"}),
		repairs:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "durable_args_repairs_total", Help: "Files of libcni's cache examined at the start, by what was done."}, []string{"action"}),
		insertions: prometheus.NewCounter(prometheus.CounterOpts{Name: "durable_args_stanza_insertions_total", Help: "How often stanzas were put into a conflist."}),
		backoff:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "durable_args_stanza_backoff_seconds", Help: "How long the agent waits before it puts the stanzas back, 0 in peace."}, []string{"conflist"}),
		swept:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "durable_args_last_sweep_timestamp_seconds", Help: "When the agent last looked for stale attachments."}),
	}
	for _, outcome := range []string{"replayed", "refused", "failed"} {
		m.replays.WithLabelValues(outcome)
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "durable_args_build_info", Help: "Always 1; the version is its label.", ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	m.registry.MustRegister(m.replays, m.repairs, m.insertions, m.backoff, m.swept, build, m)
	return m
}

// Describe implements [prometheus.Collector].
func (m *agentMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{attachmentsDesc, staleDesc, debtsDesc, damagedDesc, newerDesc, unreadableDesc, asideDesc, journalDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]: it reads the journal.
func (m *agentMetrics) Collect(ch chan<- prometheus.Metric) {
	c, err := m.node.count()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	readable := 1
	if err != nil || c.unreadable > 0 {
		readable = 0
	}
	gauge(journalDesc, readable)
	for network, n := range c.networks {
		gauge(attachmentsDesc, n, network)
	}
	gauge(staleDesc, c.stale)
	gauge(debtsDesc, c.debts)
	gauge(damagedDesc, c.damaged)
	gauge(newerDesc, c.newer)
	gauge(unreadableDesc, c.unreadable)
	gauge(asideDesc, c.aside)
}

// observe counts a replay.
func (m *agentMetrics) observe(err error) {
	outcome := "failed"
	switch {
	case err == nil:
		outcome = "replayed"
	case errors.As(err, new(*replay.AliveError)), errors.As(err, new(*replay.ConflictError)), errors.As(err, new(*hiddenError)):
		outcome = "refused"
	}
	m.replays.WithLabelValues(outcome).Inc()
}

func (m *agentMetrics) setReady(ready bool) { m.ready.Store(ready) }

// serve answers until the function that it returns is called.
func (m *agentMetrics) serve(listener net.Listener) (stop func()) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !m.ready.Load() {
			http.Error(w, "not all is as it should be; the agent's log says what", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }
}
