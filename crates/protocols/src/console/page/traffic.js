// The charts of what the server does: which there are, of which model, and of how long.

import { json, segment } from "./api.js";
import { BarChart, TimeChart } from "./charts.js";
import { byId, options, segments } from "./dom.js";
import { feed } from "./feed.js";
import { bytes, count, millis, number, percent } from "./format.js";

const MINUTE = 60_000;
/** One model's points are asked for this often; those of all models come by themselves. */
const EVERY = 2500;

let span = 5 * MINUTE;
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
	note: "from the request to its answer",
	unit: millis,
	empty: "No request was answered in this time.",
	series: [
		{ name: "p99", color: "c3", value: p => p.p99_ms },
		{ name: "p95", color: "c2", value: p => p.p95_ms },
		{ name: "p50", color: "c1", value: p => p.p50_ms },
	],
});
const work = new TimeChart({
	title: "Queue against compute",
	note: "mean time of a request in each",
	unit: millis,
	stacked: true,
	empty: "No request was run in this time.",
	series: [
		{ name: "compute", color: "c1", value: p => p.compute_ms },
		{ name: "queue", color: "c4", value: p => p.queue_ms },
	],
});
const batches = new BarChart({
	title: "Batch sizes",
	note: "batches by their number of rows",
	unit: number,
	color: "c2",
	empty: "No batch was run in this time.",
	describe: (sizes, chosen) => {
		const total = sizes.reduce((sum, [, many]) => sum + many, 0);
		if (chosen === null) return { name: "batches", value: number(total) };
		const many = sizes[chosen][1];
		return { name: rowsOf(sizes, chosen), value: `${count(many, "time")} (${percent((100 * many) / (total || 1))})` };
	},
});
const errors = new TimeChart({
	title: "Errors",
	note: "failed requests per second, by code",
	unit: number,
	stacked: true,
	empty: "No request failed in this time.",
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
	title: "Processor",
	note: "of one core",
	unit: percent,
	area: true,
	series: [{ name: "CPU", color: "c2", value: p => p.cpu_percent }],
});
const memory = new TimeChart({
	title: "Memory",
	note: "of the whole process",
	unit: bytes,
	round: 1024 * 1024,
	area: true,
	series: [{ name: "resident", color: "c2", value: p => p.memory_bytes }],
});
const flight = new TimeChart({
	title: "In flight",
	note: "requests at one time",
	unit: number,
	area: true,
	series: [{ name: "in flight", color: "c1", value: p => p.in_flight }],
});
/** Those that there are not of one model. */
const ofServer = [flight, machine, memory];
const charts = [throughput, latency, work, batches, errors, flight, machine, memory];

/** Puts the panel together. */
export function start() {
	const spans = segments(
		"How long",
		[
			["1", "1 min"],
			["5", "5 min"],
			["15", "15 min"],
		],
		value => {
			span = Number(value) * MINUTE;
			draw();
		},
	);
	spans.pick("5");
	byId("charts-span").append(spans.element);
	byId("charts-grid").append(...charts.map(chart => chart.element));
	byId("charts-model").addEventListener("change", () => {
		points = [];
		draw();
		ask();
	});
	feed.addEventListener("points", () => {
		if (byId("charts-model").value === "") draw();
	});
	feed.addEventListener("status", listModels);
	setInterval(() => shown && feed.isRunning && ask(), EVERY);
}

/** Called when the panel comes and goes. */
export function show(is) {
	shown = is;
	if (!is) return;
	listModels();
	draw();
	ask();
}

function listModels() {
	if (!shown) return;
	const names = feed.status.models.map(model => [model.name, model.name]);
	options(byId("charts-model"), [["", "All models"], ...names]);
}

/** Asks for the points of one model, if one is chosen. */
async function ask() {
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
		// The banner says when the server is away; the charts stay as they are.
	}
}

function draw() {
	if (!shown) return;
	const together = byId("charts-model").value === "";
	const to = Math.max(feed.points.at(-1)?.at ?? 0, feed.status?.server.now ?? 0);
	const all = (together ? feed.points : points).filter(point => point.at >= to - span);
	// About sixty points, whatever the time they are of.
	const folded = fold(all, span / MINUTE);
	for (const chart of charts) {
		if (chart !== batches) chart.update(folded, to, span);
	}
	batches.update(bars(all));
	for (const chart of ofServer) chart.element.hidden = !together;
}

/** Points of at least `seconds` each, out of shorter ones. */
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

/** Batches of all points by their rows, up to the largest there was: `[[most rows, count], …]`. */
function bars(all) {
	const counts = new Map();
	for (const [rows, many] of all.flatMap(point => Object.entries(point.batch_rows ?? {}))) {
		counts.set(rows, (counts.get(rows) ?? 0) + many);
	}
	const size = ([rows]) => (rows === "more" ? Infinity : Number(rows));
	const sorted = [...counts].toSorted((a, b) => size(a) - size(b));
	return sorted.slice(0, sorted.findLastIndex(([, many]) => many > 0) + 1);
}

/** What a bar counts: those that are larger than the bar before it. */
function rowsOf(sizes, index) {
	const [rows] = sizes[index];
	const before = index > 0 ? Number(sizes[index - 1][0]) : 0;
	if (rows === "more") return `over ${before} rows`;
	return Number(rows) === before + 1 ? count(Number(rows), "row") : `${before + 1} to ${rows} rows`;
}
