// The header, and the server's figures above the models.

import { sparkline } from "./charts.js";
import { byId, el, icon, replace, setText } from "./dom.js";
import { feed } from "./feed.js";
import { bytes, clock, count, duration, isMuch, millis, NONE, number, percent } from "./format.js";

/** Number of points in a figure's sparkline. */
const RECENT = 60;
/** The resources whose use is the saturation. */
const RESOURCES = { cpu: "CPU", batch_threads: "batch threads", queue: "queue", request_memory: "request memory" };
/** The percentage of saturation from which on it is highlighted. */
const MUCH_SATURATION = 90;
/** Reasons that are listed at once; the others can be opened. */
const REASONS = 5;

const tiles = {};
/** The saturation with each status, the newest last. */
const saturations = [];

/** Builds the figures. */
export function start() {
	for (const [id, label] of [
		["requests", "Requests"],
		["latency", "Latency p50"],
		["errors", "Errors"],
		["flight", "In flight"],
		["saturation", "Saturation"],
		["memory", "Memory"],
		["cpu", "CPU"],
	]) {
		tiles[id] = tile(label);
		byId("tiles").append(tiles[id].element);
	}
	feed.addEventListener("status", () => {
		header();
		figures();
		facts();
	});
	feed.addEventListener("state", () => feed.status && header());
	feed.addEventListener("points", lines);
}

function tile(label) {
	const value = el("b");
	const unit = el("span.unit");
	const note = el("p.under");
	const line = el("div.tile-line");
	const element = el("article.tile.card", el("h3", label), el("p.figure", value, unit), note, line);
	return { element, value, unit, note, line };
}

function setTile(id, figure, unit, note) {
	setText(tiles[id].value, figure);
	setText(tiles[id].unit, unit);
	setText(tiles[id].note, note);
}

function header() {
	const { server, stores } = feed.status;
	setText(byId("version"), server.version);
	setText(byId("uptime"), `up ${duration(server.uptime_seconds)}`);
	const pill = byId("ready");
	const state = server.ready ? "Ready" : "Not ready";
	pill.className = `pill ${feed.isStale ? "off" : server.ready ? "good" : "bad"}`;
	setText(byId("ready-text"), feed.isStale ? `No contact since ${clock(feed.seenAt)}` : state);
	document.title = `${feed.isStale ? "No contact · " : server.ready ? "" : "Not ready · "}tensorserve`;
	const failing = stores.flatMap(it => it.error ?? []);
	const reasons = server.ready ? failing : server.reasons;
	const title = server.ready ? "A store fails" : "The server is not ready";
	const box = byId("reasons");
	box.hidden = reasons.length === 0;
	const content = [title, ...reasons].join("\n");
	if (box.dataset.shown === content) return;
	box.dataset.shown = content;
	replace(
		box,
		icon("alert"),
		el(
			"div",
			el("strong", title),
			el("ul", listed(reasons.slice(0, REASONS))),
			reasons.length > REASONS
				? el("details", el("summary", `${reasons.length - REASONS} more`), el("ul", listed(reasons.slice(REASONS))))
				: null,
		),
	);
}

function listed(reasons) {
	return reasons.map(reason => el("li", reason));
}

function figures() {
	const { server } = feed.status;
	setTile(
		"requests",
		number(server.requests_per_second),
		"/s",
		server.connections === null ? "" : count(server.connections, "connection"),
	);
	const [p50, unit] = split(millis(server.p50_ms));
	setTile("latency", p50, unit, `p99 ${millis(server.p99_ms)}`);
	setTile("errors", number(server.errors_per_second), "/s", `${percent(share(server))} of requests`);
	const held = `${bytes(server.request_memory_bytes)} of ${bytes(server.request_memory_limit_bytes)}`;
	setTile("flight", number(server.in_flight), "", `${number(server.queued)} queued, ${held}`);
	const [size, of] = split(bytes(server.memory_bytes));
	const limit = server.memory_limit_bytes ?? server.machine_memory_bytes;
	setTile("memory", size, of, `of ${bytes(limit)}${server.memory_limit_bytes ? " limit" : ""}`);
	setTile("cpu", number(server.cpu_percent), "%", `of ${count(server.cores, "core")}`);
	saturation(server);
	tiles.errors.element.classList.toggle("alarm", isMuch(share(server)));
}

/** The resource of which the largest share is in use, and all shares. */
function saturation(server) {
	const shares = Object.entries(RESOURCES)
		.filter(([name]) => name in (server.utilization ?? {}))
		.map(([name, title]) => [title, Math.round(100 * server.utilization[name])])
		.toSorted(([, a], [, b]) => b - a);
	const [, most] = shares[0] ?? [null, null];
	setTile(
		"saturation",
		number(most),
		"%",
		shares.map(([title, value]) => `${title} ${value}\u00a0%`).join(", ") || NONE,
	);
	tiles.saturation.element.classList.toggle("alarm", most >= MUCH_SATURATION);
	saturations.push(most ?? 0);
	if (saturations.length > RECENT) saturations.shift();
	replace(tiles.saturation.line, sparkline(saturations, { most: 100 }));
}

function share(server) {
	const rate = server.requests_per_second;
	return rate > 0 ? (100 * server.errors_per_second) / rate : 0;
}

function split(text) {
	const [figure, unit = ""] = text.split(" ");
	return [figure, unit];
}

function lines() {
	const recent = feed.points.slice(-RECENT);
	const draw = (id, value, most) =>
		replace(
			tiles[id].line,
			sparkline(
				recent.map(p => value(p) ?? 0),
				{ most },
			),
		);
	draw("requests", p => p.requests / p.seconds);
	draw("latency", p => p.p50_ms);
	draw("errors", p => p.errors / p.seconds);
	draw("flight", p => p.in_flight, 4);
	draw("memory", p => p.memory_bytes);
	draw("cpu", p => p.cpu_percent, 100);
}

/** What rarely changes: runtimes, ports, GPUs, custom operations. */
function facts() {
	const { server, stores } = feed.status;
	const list = [
		...server.runtimes.map(runtime => ["Runtime", runtime]),
		...server.gpus.map(gpu => ["GPU", gpu]),
		...(server.gpus.length ? [] : [["GPU", gpuObstacle(server)]]),
		["gRPC", server.grpc_port === null ? "off" : `port ${server.grpc_port}`],
		["Access", server.auth ? "credentials required" : "no authentication"],
		...stores.map(it => ["Store", it.location + (it.downloads ? " · downloading" : it.error ? " · fails" : "")]),
	];
	const content = JSON.stringify([list, server.custom_ops]);
	const box = byId("facts");
	if (box.dataset.shown === content) return;
	box.dataset.shown = content;
	replace(
		box,
		list.map(([name, value]) => el("div", el("dt", name), el("dd", value))),
		(server.custom_ops ?? []).map(customOps),
	);
}

/** Why models run on the CPU. */
function gpuObstacle(server) {
	return server.gpus_unavailable ? `none: ${server.gpus_unavailable}` : "none";
}

function customOps({ path, ops, error }) {
	const file = path.split("/").at(-1);
	const text = error ?? (ops.length ? ops.join(", ") : "no custom operations");
	return el("div", { class: error ? "bad-text" : null, title: path }, el("dt", `Custom ops · ${file}`), el("dd", text));
}
