// Charts over time and of counts, drawn as SVG.
//
// The pointer, or the arrow keys while a chart has the focus, select a moment: the legend then shows
// its values instead of the latest.

import { el, replace, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 168;
const EDGE = { top: 10, right: 12, bottom: 22, left: 52 };

/** The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `value`. */
function nice(value) {
	const power = 10 ** Math.floor(Math.log10(value));
	return [1, 2, 2.5, 5, 10].find(step => step * power >= value * 0.999) * power;
}

/** The values of the grid's lines, from 0 to at least `most`: round multiples of `unit`. */
function ticks(most, unit) {
	const step = nice(most / 3 / unit) * unit;
	const lines = Math.max(1, Math.ceil(most / step - 0.001));
	return Array.from({ length: lines + 1 }, (_, i) => i * step);
}

/** The base of all charts: a heading, a legend and a drawing of the available width. */
class Chart {
	constructor({ title, note, unit, round = 1 }) {
		this.unit = unit;
		this.round = round;
		this.legend = el("div.legend");
		this.when = el("span.when");
		this.drawing = svg("svg.chart", { height: HEIGHT, "aria-hidden": "true" });
		this.plot = el(
			"div.plot",
			{ tabindex: 0, role: "slider", "aria-label": title, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0 },
			this.drawing,
		);
		this.empty = el("p.empty", { hidden: true });
		const heading = el("header", el("h3", title), el("p", note), this.when);
		this.element = el("article.card.chart-card", heading, this.legend, this.plot, this.empty);
		this.chosen = null;
		this.width = 0;
		new ResizeObserver(([{ contentRect }]) => {
			if (Math.abs(contentRect.width - this.width) < 1) return;
			this.width = contentRect.width;
			this.draw();
		}).observe(this.plot);
		this.plot.addEventListener("pointermove", event => this.point(event));
		this.plot.addEventListener("pointerdown", event => this.point(event));
		this.plot.addEventListener("pointerleave", () => this.choose(null));
		this.plot.addEventListener("blur", () => this.choose(null));
		this.plot.addEventListener("keydown", event => this.key(event));
	}

	/** The vertical position of a value. */
	y(value) {
		return HEIGHT - EDGE.bottom - (value / this.top) * (HEIGHT - EDGE.top - EDGE.bottom);
	}

	get right() {
		return Math.max(EDGE.left + 1, this.width - EDGE.right);
	}

	/** The number of moments or bars. */
	get length() {
		return 0;
	}

	point(event) {
		const at = event.clientX - this.plot.getBoundingClientRect().left;
		this.choose(this.length ? this.nearest(at) : null);
	}

	key(event) {
		const last = this.length - 1;
		const now = this.chosen ?? last;
		const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last }[
			event.key
		];
		if (event.key === "Escape") this.choose(null);
		if (to === undefined || last < 0) return;
		event.preventDefault();
		this.choose(Math.min(last, Math.max(0, to)));
	}

	choose(index) {
		if (index === this.chosen) return;
		this.chosen = index;
		this.draw();
	}

	/** The grid with its numbers, for values up to `most`. */
	grid(most) {
		const lines = ticks(most > 0 ? most : 1, this.round);
		this.top = lines.at(-1);
		return lines.map(value =>
			svg(
				"g",
				svg("line.grid", { x1: EDGE.left, x2: this.right, y1: this.y(value), y2: this.y(value) }),
				svg("text.tick", { x: EDGE.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, this.unit(value)),
			),
		);
	}

	/** Updates the legend, also for screen readers. */
	setLegend(entries, when, index) {
		const same = this.legend.children.length === entries.length;
		if (!same) {
			replace(
				this.legend,
				entries.map(({ color }) => el("span", el("i", { class: `key ${color}` }), el("span.name"), el("b"))),
			);
		}
		entries.forEach(({ name, value, color }, i) => {
			const [key, label, number] = this.legend.children[i].children;
			key.setAttribute("class", `key ${color}`);
			setText(label, name);
			setText(number, value);
		});
		setText(this.when, when);
		const said = entries.map(({ name, value }) => `${name} ${value}`).join(", ");
		this.plot.setAttribute("aria-valuetext", `${when}: ${said}`);
		this.plot.setAttribute("aria-valuemax", Math.max(0, this.length - 1));
		this.plot.setAttribute("aria-valuenow", Math.max(0, index));
	}

	/** Shows why the chart is empty; null if it is not. */
	setEmpty(why) {
		this.empty.hidden = why === null;
		setText(this.empty, why ?? "");
		this.element.classList.toggle("is-empty", why !== null);
	}
}

/** Lines, areas or stacked areas over time. A series is `{name, color, value(point)}`. */
export class TimeChart extends Chart {
	constructor({ series, stacked = false, area = false, empty = null, ...frame }) {
		super(frame);
		Object.assign(this, { series, stacked, area, why: empty, points: [], from: 0, to: 1 });
	}

	/** Draws these points on an axis of `span` milliseconds that ends at `to`. */
	update(points, to, span) {
		const chosen = this.chosen === null ? null : this.points[this.chosen]?.at;
		this.points = points.filter(point => point.at >= to - span);
		this.from = to - span;
		this.to = to;
		// The same moment stays selected while the chart moves.
		const index = this.points.findIndex(point => point.at === chosen);
		this.chosen = index < 0 ? null : index;
		this.draw();
	}

	get length() {
		return this.points.length;
	}

	x(at) {
		return EDGE.left + ((at - this.from) / (this.to - this.from)) * (this.right - EDGE.left);
	}

	nearest(x) {
		let best = 0;
		this.points.forEach((point, i) => {
			if (Math.abs(this.x(point.at) - x) < Math.abs(this.x(this.points[best].at) - x)) best = i;
		});
		return best;
	}

	/** For each series its `[low, high]` at each point; null where there is no value. */
	layers(series) {
		const below = this.points.map(() => 0);
		return series.map(({ value }) =>
			this.points.map((point, i) => {
				const own = value(point);
				if (own === null || own === undefined) return null;
				if (!this.stacked) return [0, own];
				below[i] += own;
				return [below[i] - own, below[i]];
			}),
		);
	}

	draw() {
		if (!this.width) return;
		const series = typeof this.series === "function" ? this.series(this.points) : this.series;
		const layers = this.layers(series);
		const most = Math.max(0, ...layers.flat().map(pair => pair?.[1] ?? 0));
		this.setEmpty(this.why && most === 0 ? this.why : null);
		const parts = this.grid(most);
		parts.push(...this.times());
		layers.forEach((layer, i) => parts.push(...this.layer(layer, series[i].color)));
		const index = this.chosen ?? this.length - 1;
		const point = this.points[index];
		if (point && this.chosen !== null) {
			const x = this.x(point.at);
			parts.push(svg("line.cross", { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
		}
		layers.forEach((layer, i) => {
			if (!point || !layer[index] || (this.chosen === null && most === 0)) return;
			parts.push(
				svg("circle", { class: `dot ${series[i].color}`, r: 3.5, cx: this.x(point.at), cy: this.y(layer[index][1]) }),
			);
		});
		this.drawing.setAttribute("width", this.width);
		replace(this.drawing, parts);
		const entries = series.map(({ name, color, value }) => ({
			name,
			color,
			value: this.unit(point ? value(point) : null),
		}));
		this.setLegend(entries, point && this.chosen !== null ? clock(point.at) : "now", index);
	}

	/** One series, in pieces between gaps. */
	layer(layer, color) {
		const pieces = [];
		let piece = [];
		const gap = this.typicalStep() * 2.5;
		layer.forEach((pair, i) => {
			const late = piece.length && this.points[i].at - piece.at(-1).at > gap;
			if (!pair || late) {
				pieces.push(piece);
				piece = [];
			}
			if (pair) piece.push({ at: this.points[i].at, low: pair[0], high: pair[1] });
		});
		pieces.push(piece);
		return pieces
			.filter(one => one.length)
			.flatMap(one => {
				const line = edge => one.map(p => `${this.x(p.at).toFixed(1)},${this.y(p[edge]).toFixed(1)}`);
				const high = line("high");
				const stroke =
					high.length > 1
						? svg("path", { class: `line ${color}`, d: `M${high.join("L")}` })
						: svg("circle", { class: `dot ${color}`, r: 2, cx: this.x(one[0].at), cy: this.y(one[0].high) });
				if (!this.area && !this.stacked) return [stroke];
				const outline = `M${high.join("L")}L${line("low").toReversed().join("L")}Z`;
				return [svg("path", { class: `area ${color}`, d: outline }), stroke];
			});
	}

	typicalStep() {
		const steps = this.points
			.slice(1)
			.map((point, i) => point.at - this.points[i].at)
			.toSorted((a, b) => a - b);
		return steps[Math.floor(steps.length / 2)] ?? 5000;
	}

	/** The labels of the time axis. */
	times() {
		const minute = 60_000;
		const span = this.to - this.from;
		const step =
			[minute / 4, minute, 2 * minute, 5 * minute].find(one => (span / one) * 64 <= this.right - EDGE.left) ??
			5 * minute;
		const first = Math.ceil(this.from / step) * step;
		const marks = Array.from({ length: Math.floor((this.to - first) / step) + 1 }, (_, i) => first + i * step);
		return marks
			.filter(at => this.x(at) > EDGE.left + 16 && this.x(at) < this.right - 16)
			.map(at => svg("text.tick", { x: this.x(at), y: HEIGHT - 6, "text-anchor": "middle" }, clock(at, step < minute)));
	}
}

/** Bars of counts: `[[name, count], …]`. */
export class BarChart extends Chart {
	constructor({ color, empty, describe, ...frame }) {
		super(frame);
		Object.assign(this, { color, why: empty, describe, bars: [] });
	}

	update(bars) {
		this.bars = bars;
		if (this.chosen >= bars.length) this.chosen = null;
		this.draw();
	}

	get length() {
		return this.bars.length;
	}

	get step() {
		return (this.right - EDGE.left) / Math.max(this.bars.length, 6);
	}

	nearest(x) {
		return Math.min(this.length - 1, Math.max(0, Math.floor((x - EDGE.left) / this.step)));
	}

	draw() {
		if (!this.width) return;
		const total = this.bars.reduce((sum, [, many]) => sum + many, 0);
		this.setEmpty(total === 0 ? this.why : null);
		const parts = this.grid(Math.max(0, ...this.bars.map(([, many]) => many)));
		this.bars.forEach(([name, many], i) => {
			const [x, y] = [EDGE.left + i * this.step, this.y(many)];
			const width = Math.max(1, Math.min(this.step * 0.76, 56));
			const at = x + (this.step - width) / 2;
			const height = Math.max(many > 0 ? 1.5 : 0, HEIGHT - EDGE.bottom - y);
			const faded = this.chosen !== null && this.chosen !== i ? "faded" : "";
			parts.push(
				svg("rect", {
					class: `bar ${this.color} ${faded}`,
					x: at,
					y: HEIGHT - EDGE.bottom - height,
					width,
					height,
					rx: Math.min(3, height / 2),
				}),
			);
			if (this.step > 22 || i % Math.ceil(24 / this.step) === 0) {
				parts.push(svg("text.tick", { x: x + this.step / 2, y: HEIGHT - 6, "text-anchor": "middle" }, name));
			}
		});
		this.drawing.setAttribute("width", this.width);
		replace(this.drawing, parts);
		this.setLegend([{ color: this.color, ...this.describe(this.bars, this.chosen) }], "", this.chosen ?? 0);
	}
}

/** A line without axes; `values` are oldest first. */
export function sparkline(values, { width = 120, height = 28, most = 0 } = {}) {
	const top = Math.max(most, ...values) || 1;
	const step = width / Math.max(1, values.length - 1);
	const line = values.map(
		(value, i) => `${(i * step).toFixed(1)},${(height - 1.5 - (value / top) * (height - 3)).toFixed(1)}`,
	);
	const box = {
		viewBox: `0 0 ${width} ${height}`,
		preserveAspectRatio: "none",
		class: "sparkline",
		"aria-hidden": "true",
	};
	if (values.length < 2) return svg("svg", box);
	return svg(
		"svg",
		box,
		svg("path.area", { d: `M0,${height}L${line.join("L")}L${width},${height}Z` }),
		svg("path.line", { d: `M${line.join("L")}` }),
	);
}
