package main

import (
	"fmt"
	"html"
	"strings"
)

// palette is the colours of a chart.
type palette struct{ text, faint, ours, others string }

var (
	light = palette{text: "#1f2328", faint: "#59636e", ours: "#0969da", others: "#b4bcc4"}
	dark  = palette{text: "#f0f6fc", faint: "#9198a1", ours: "#4493f8", others: "#57606a"}
)

// chart draws bars of medians, with the middle half as a line; one scale for
// each group.
func chart(bars []bar, p palette) string {
	const left, width, row = 330, 430, 22
	var b strings.Builder
	y := 8
	for i, bar := range bars {
		if i == 0 || bars[i-1].group != bar.group {
			y += 30
			fmt.Fprintf(&b, `<text x="0" y="%d" fill="%s" font-weight="600">%s, ms</text>`+"\n", y-8, p.text, html.EscapeString(bar.group))
		}
		var longest float64
		for _, other := range bars {
			if other.group == bar.group {
				longest = max(longest, quantile(other.ms, 0.75))
			}
		}
		x := func(ms float64) float64 { return left + width*ms/longest }
		colour := p.others
		if strings.HasPrefix(bar.name, "durable-args") {
			colour = p.ours
		}
		m := median(bar.ms)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>`+"\n", left-8, y+15, p.text, html.EscapeString(bar.name))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="14" rx="2" fill="%s"/>`+"\n", left, y+4, x(m)-left, colour)
		fmt.Fprintf(&b, `<path d="M%.1f %dH%.1f" stroke="%s"/>`+"\n", x(quantile(bar.ms, 0.25)), y+11, x(quantile(bar.ms, 0.75)), p.faint)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="%s">%.2f</text>`+"\n", x(max(m, quantile(bar.ms, 0.75)))+6, y+15, p.faint, m)
		y += row
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" role="img">`+"\n"+
		"<title>What durable-args costs: medians, and the middle half</title>\n%s</svg>\n", left+width+60, y+8, b.String())
}
