// The charts: throughput, latency and resources of the server or of one model.

import * as address from "./address.js";
import { json, segment } from "./api.js";
import { BarChart, TimeChart } from "./charts.js";
import { byId, options, segments } from "./dom.js";
import { feed } from "./feed.js";
import { bytes, count, millis, number, percent } from "./format.js";

const MINUTE = 60_000;
/** Milliseconds between updates of one model's points; the feed has those of all models. */
const INTERVAL = 2500;

/** Minutes that the charts can show, and those that they show at first. */
const RANGES = ["1", "5", "15"];
const FIRST = "5";

let span = Number(FIRST) * MINUTE;
let ranges;
/** The signature of the address, which is that of other panels. */
let signature;
let shown = false;
let points = [];
let asking = 0;

const perSecond = (many, point) => many / point.seconds;

const throughput = new TimeChart({
	title: "Throughput",
	note: "requests per second",
	unit: number,
	area: true,
	series: [{ name: "requests", color: "c1", value: p => perSecond(p.requests, p) }],
});
const latency = new TimeChart({
	title: "Latency",
	note: "from request to response",
	unit: millis,
	empty: "No requests in this time range.",
	series: [
		{ name: "p99", color: "c3", value: p => p.p99_ms },
		{ name: "p95", color: "c2", value: p => p.p95_ms },
		{ name: "p50", color: "c1", value: p => p.p50_ms },
	],
});
const work = new TimeChart({
	title: "Queue delay and compute",
	note: "mean time of a request",
	unit: millis,
	stacked: true,
	empty: "No runs in this time range.",
	series: [
		{ name: "compute", color: "c1", value: p => p.compute_ms },
		{ name: "queue delay", color: "c4", value: p => p.queue_ms },
	],
});
const batches = new BarChart({
	title: "Batch sizes",
	note: "batches by number of rows",
	unit: number,
	color: "c2",
	empty: "No batches in this time range.",
	describe: (sizes, chosen) => {
		const total = sizes.reduce((sum, [, many]) => sum + many, 0);
		if (chosen === null) return { name: "batches", value: number(total) };
		const many = sizes[chosen][1];
		return { name: rowsOf(sizes, chosen), value: `${number(many)} (${percent((100 * many) / (total || 1))})` };
	},
});
const errors = new TimeChart({
	title: "Errors",
	note: "failed requests per second, by code",
	unit: number,
	stacked: true,
	empty: "No errors in this time range.",
	series: all => {
		const codes = new Set(all.flatMap(p => Object.keys(p.errors_by_code)));
		const colors = ["c5", "c4", "c3", "c2", "c1"];
		if (!codes.size) return [{ name: "errors", color: "c5", value: p => perSecond(p.errors, p) }];
		return [...codes].toSorted().map((code, i) => ({
			name: code,
			color: colors[i % colors.length],
			value: p => perSecond(p.errors_by_code[code] ?? 0, p),
		}));
	},
});
const machine = new TimeChart({
	title: "CPU",
	note: "100 % is one core",
	unit: percent,
	area: true,
	series: [{ name: "CPU", color: "c2", value: p => p.cpu_percent }],
});
const memory = new TimeChart({
	title: "Memory",
	note: "of the server process",
	unit: bytes,
	round: 1024 * 1024,
	area: true,
	series: [{ name: "resident", color: "c2", value: p => p.memory_bytes }],
});
const flight = new TimeChart({
	title: "In flight",
	note: "concurrent requests",
	unit: number,
	area: true,
	series: [{ name: "in flight", color: "c1", value: p => p.in_flight }],
});
/** Those that exist for the whole server only. */
const ofServer = [flight, machine, memory];
const charts = [throughput, latency, work, batches, errors, flight, machine, memory];

/** Builds the panel. */
export function start() {
	ranges = segments(
		"Time range",
		RANGES.map(minutes => [minutes, `${minutes} min`]),
		value => {
			span = Number(value) * MINUTE;
			keepAddress();
			draw();
		},
	);
	ranges.pick(FIRST);
	byId("charts-span").append(ranges.element);
	byId("charts-grid").append(...charts.map(chart => chart.element));
	byId("charts-model").addEventListener("change", () => {
		points = [];
		signature = "";
		keepAddress();
		draw();
		fetchPoints();
	});
	feed.addEventListener("points", () => {
		if (byId("charts-model").value === "") draw();
	});
	feed.addEventListener("status", listModels);
	setInterval(() => shown && feed.isRunning && fetchPoints(), INTERVAL);
}

/** Called when the panel is shown or hidden, with the model and the options of the address. */
export function show(isShown, model, wanted) {
	shown = isShown;
	if (!shown) return;
	listModels();
	({ signature } = wanted);
	if (RANGES.includes(wanted.range)) {
		ranges.pick(wanted.range);
		span = Number(wanted.range) * MINUTE;
	}
	const menu = byId("charts-model");
	const before = menu.value;
	menu.value = model ?? "";
	// All models, if there is none of this name.
	if (menu.value === "") menu.value = "";
	if (menu.value !== before) points = [];
	keepAddress();
	draw();
	fetchPoints();
}

function listModels() {
	if (!shown) return;
	const names = feed.status.models.map(model => [model.name, model.name]);
	options(byId("charts-model"), [["", "All models"], ...names]);
}

/** Keeps the model and the time range in the address. */
function keepAddress() {
	const range = String(span / MINUTE);
	address.write("charts", byId("charts-model").value || null, { signature, range: range === FIRST ? "" : range });
}

/** Fetches the points of one model, if one is selected. */
async function fetchPoints() {
	const model = byId("charts-model").value;
	asking += 1;
	const turn = asking;
	if (model === "") return;
	try {
		const history = await json(`/api/v1/history?model=${segment(model)}`);
		if (turn !== asking) return;
		points = history.points;
		draw();
	} catch {
		// The banner shows a lost connection; the charts stay as they are.
	}
}

function draw() {
	if (!shown) return;
	const together = byId("charts-model").value === "";
	const to = Math.max(feed.points.at(-1)?.at ?? 0, feed.status?.server.now ?? 0);
	const all = (together ? feed.points : points).filter(point => point.at >= to - span);
	// About sixty points for any time range.
	const folded = fold(all, span / MINUTE);
	for (const chart of charts) {
		if (chart !== batches) chart.update(folded, to, span);
	}
	batches.update(bars(all));
	for (const chart of ofServer) chart.element.hidden = !together;
}

/** Joins points into points of at least `seconds` each. */
function fold(all, seconds) {
	const groups = new Map();
	for (const point of all) {
		const key = point.seconds >= seconds ? `alone ${point.at}` : Math.floor(point.at / (seconds * 1000));
		groups.set(key, [...(groups.get(key) ?? []), point]);
	}
	return [...groups.values()].map(group => (group.length === 1 ? group[0] : joined(group)));
}

function joined(group) {
	const sum = name => group.reduce((total, point) => total + point[name], 0);
	const mean = (name, weight) => {
		const known = group.filter(point => point[name] !== null && weight(point) > 0);
		const whole = known.reduce((total, point) => total + weight(point), 0);
		return whole ? known.reduce((total, point) => total + point[name] * weight(point), 0) / whole : null;
	};
	const codes = {};
	for (const [code, many] of group.flatMap(point => Object.entries(point.errors_by_code))) {
		codes[code] = (codes[code] ?? 0) + many;
	}
	const point = { ...group.at(-1), seconds: sum("seconds"), requests: sum("requests"), errors: sum("errors") };
	point.errors_by_code = codes;
	for (const name of ["p50_ms", "p95_ms", "p99_ms", "queue_ms", "compute_ms"]) {
		point[name] = mean(name, ({ requests }) => requests);
	}
	for (const name of ["cpu_percent", "in_flight"]) point[name] = mean(name, () => 1);
	return point;
}

/** Counts of batches by size, up to the largest: `[[maximum rows, count], …]`. */
function bars(all) {
	const counts = new Map();
	for (const [rows, many] of all.flatMap(point => Object.entries(point.batch_rows ?? {}))) {
		counts.set(rows, (counts.get(rows) ?? 0) + many);
	}
	const size = ([rows]) => (rows === "more" ? Infinity : Number(rows));
	const sorted = [...counts].toSorted((a, b) => size(a) - size(b));
	return sorted.slice(0, sorted.findLastIndex(([, many]) => many > 0) + 1);
}

/** The batch sizes that a bar counts: larger than those of the bar before it. */
function rowsOf(sizes, index) {
	const [rows] = sizes[index];
	const before = index > 0 ? Number(sizes[index - 1][0]) : 0;
	if (rows === "more") return `more than ${before} rows`;
	return Number(rows) === before + 1 ? count(Number(rows), "row") : `${before + 1} to ${rows} rows`;
}
