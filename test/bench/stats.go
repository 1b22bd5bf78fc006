package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// sample is what one call took.
type sample struct{ wall, cpu time.Duration }

// series is the samples of one contestant. The sample at i is of round i, so
// that two series can be compared round by round.
type series []sample

func (s series) of(f func(sample) time.Duration) []float64 {
	var ms []float64
	for _, x := range s {
		ms = append(ms, f(x).Seconds()*1000)
	}
	return ms
}

func wall(s sample) time.Duration { return s.wall }
func cpu(s sample) time.Duration  { return s.cpu }

// quantile of xs, which need not be sorted.
func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below+1 == len(sorted) {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

func median(xs []float64) float64 { return quantile(xs, 0.5) }

// pairs combines a and b round by round.
func pairs(a, b []float64, f func(a, b float64) float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		out = append(out, f(a[i], b[i]))
	}
	return out
}

func quotient(a, b float64) float64   { return a / b }
func difference(a, b float64) float64 { return a - b }

// interval is that which holds the median of xs' origin in 95 of 100 cases, by
// bootstrap. Noise makes it wide; only a quiet machine or more rounds make it
// narrow.
func interval(xs []float64) (low, high float64) {
	if len(xs) == 0 {
		return 0, 0
	}
	rng := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, 500)
	again := make([]float64, len(xs))
	for i := range medians {
		for j := range again {
			again[j] = xs[rng.IntN(len(xs))]
		}
		medians[i] = median(again)
	}
	return quantile(medians, 0.025), quantile(medians, 0.975)
}

// spread writes the median of milliseconds, and the middle half.
func spread(ms []float64) string {
	return fmt.Sprintf("%.2f (%.2f-%.2f)", median(ms), quantile(ms, 0.25), quantile(ms, 0.75))
}

// times writes a quotient's median with its interval.
func times(quotients []float64) string {
	low, high := interval(quotients)
	return fmt.Sprintf("%.2f (%.2f-%.2f)", median(quotients), low, high)
}
