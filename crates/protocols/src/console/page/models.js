// The models: one row each, which opens. An update touches only the rows that have changed.

import { json, segment } from "./api.js";
import { sparkline } from "./charts.js";
import { breakable, byId, el, icon, replace, setText } from "./dom.js";
import { feed } from "./feed.js";
import { ago, bytes, clock, count, isMuch, millis, NONE, number, percent, shape } from "./format.js";
import { compare, matches, showCounts, start as startOrder } from "./order.js";
import { available, chip, failures, kindOf, signaturesOf, STATES } from "./states.js";
import { folded, objections, report } from "./trial.js";

/** Number of values in a row's sparkline. */
const RECENT = 40;
/** Milliseconds between updates of an open row. */
const INTERVAL = 3000;
const CAN_HOVER = matchMedia("(hover: hover)");

const rows = new Map();
const rowOf = new WeakMap();
let actions = () => [];
let versionActions = () => [];
let turn = 0;

/**
 * Builds the panel; `makeActions(model)` returns the buttons of an open row,
 * `makeVersionActions(model, version)` those of a version that does not serve yet.
 */
export function start(makeActions, makeVersionActions) {
	actions = makeActions;
	versionActions = makeVersionActions;
	startOrder(refresh);
	listen(byId("models-rows"));
	feed.addEventListener("status", update);
	feed.addEventListener("restart", () => rows.forEach(row => row.isOpen && describe(row)));
	setInterval(() => {
		if (feed.isRunning) rows.forEach(row => row.isOpen && describe(row));
	}, INTERVAL);
}

/** Lists the models as the controls say, as after a link has set them. */
export function refresh() {
	arrange();
	filter();
}

function update() {
	const list = byId("models-rows");
	turn += 1;
	const added = document.createDocumentFragment();
	for (const model of feed.status.models) {
		let row = rows.get(model.name);
		if (!row) {
			row = makeRow(model.name);
			rows.set(model.name, row);
			added.append(row.element);
		}
		row.turn = turn;
		fill(row, model);
	}
	list.append(added);
	for (const [name, row] of rows) {
		if (row.turn === turn) continue;
		row.element.remove();
		rows.delete(name);
	}
	// Rows do not move away under the pointer or the focus.
	const isHeld = list.contains(document.activeElement) || (CAN_HOVER.matches && list.matches(":hover"));
	if (!isHeld) arrange();
	filter();
}

/** Puts the rows in their order; most are in their places. */
function arrange() {
	const list = byId("models-rows");
	const focused = list.contains(document.activeElement) ? document.activeElement : null;
	let next = list.firstElementChild;
	for (const { element } of [...rows.values()].toSorted(compare)) {
		if (element === next) next = next.nextElementSibling;
		else list.insertBefore(element, next);
	}
	if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

function makeRow(name) {
	const element = byId("model-row").content.firstElementChild.cloneNode(true);
	const [title, under] = element.querySelector(".name").children;
	const [versions, rate, p50, p99, errors, rowsPerBatch, files, used] = element.querySelectorAll(".cell:not(.name)");
	const [line, figure] = rate.children;
	title.firstElementChild.append(...breakable(name));
	const cells = { versions, p50, p99, errors, rowsPerBatch, files, used };
	const row = { name, element, title, under, cells, line, figure, rates: [], shown: "", search: "", isOpen: false };
	rowOf.set(element, row);
	return row;
}

/** A click anywhere on a row opens it; Esc closes it. */
function listen(list) {
	const row = event => rowOf.get(event.target.closest(".model"));
	list.addEventListener("click", event => {
		const isElsewhere = event.target.closest(".detail, a, button:not(.model-name)");
		if (!isElsewhere && !String(getSelection())) toggle(row(event));
	});
	list.addEventListener("keydown", event => {
		if (event.key !== "Escape" || !row(event).isOpen) return;
		toggle(row(event));
		row(event).title.focus();
	});
}

/** The figures of all versions: sums of rates and sizes, and maxima of the rest. */
function totals(versions) {
	const sum = name => versions.reduce((total, version) => total + (version[name] ?? 0), 0);
	const known = name => versions.map(version => version[name]).filter(value => value !== null && value !== undefined);
	const most = name => (known(name).length ? Math.max(...known(name)) : null);
	const rate = sum("requests_per_second");
	const errors = sum("errors_per_second");
	return {
		rate,
		p50: most("p50_ms"),
		p99: most("p99_ms"),
		errors: rate > 0 ? (100 * errors) / rate : most("error_percent"),
		rowsPerBatch: most("rows_per_batch"),
		files: known("memory_bytes").length ? sum("memory_bytes") : null,
		used: most("last_used"),
	};
}

function fill(row, model) {
	const now = feed.status.server.now;
	row.model = model;
	const all = totals([...model.versions, model.unserved ?? {}]);
	row.totals = all;
	row.kind = kindOf(model);
	const { cells } = row;
	setText(row.figure, `${number(all.rate)}/s`);
	setText(cells.p50, millis(all.p50));
	setText(cells.p99, millis(all.p99));
	setText(cells.errors, percent(all.errors));
	cells.errors.classList.toggle("bad-text", isMuch(all.errors));
	setText(cells.rowsPerBatch, number(all.rowsPerBatch));
	setText(cells.files, bytes(all.files));
	setText(cells.used, ago(all.used, now));
	drawRate(row, all.rate);
	const content = JSON.stringify([
		model.labels,
		model.source,
		model.versions.map(({ version, state, error }) => [version, state, error]),
	]);
	if (row.shown === content) return;
	row.shown = content;
	const states = model.versions.map(({ state }) => STATES[state]?.[0]);
	row.search = `${model.name} ${model.platform} ${states} ${content}`.toLowerCase();
	setText(
		row.under,
		[model.platform, model.source === "loaded" ? "loaded at run time" : null].filter(Boolean).join(" · "),
	);
	replace(cells.versions, versionChips(model));
	if (row.isOpen) describe(row);
}

function drawRate(row, rate) {
	row.rates.push(rate);
	if (row.rates.length > RECENT) row.rates.shift();
	const isIdle = row.rates.every(value => value === 0);
	if (isIdle && !row.line.firstChild) return;
	replace(row.line, isIdle ? [] : sparkline(row.rates, { width: 64, height: 20 }));
}

function versionChips(model) {
	const labels = Object.entries(model.labels ?? {});
	return model.versions
		.toSorted((a, b) => b.version - a.version)
		.flatMap(version => {
			const names = labels
				.filter(([, labelled]) => labelled === version.version)
				.map(([name]) => el("span.label", name));
			const error = version.error ? el("span.version-error", { title: version.error }, version.error) : null;
			return [el("span.version", chip(version.state, `v${version.version}`), names, error)];
		});
}

function filter() {
	let shown = 0;
	for (const row of rows.values()) {
		const is = matches(row);
		if (row.element.hidden === is) row.element.hidden = !is;
		shown += is;
	}
	showCounts([...rows.values()]);
	const all = rows.size;
	setText(byId("models-count"), shown === all ? count(all, "model") : `${shown} of ${count(all, "model")}`);
	byId("models-none").hidden = shown > 0;
	setText(
		byId("models-none"),
		all ? "No model matches the filter." : "No models. Add one to a served directory, or load one by its path.",
	);
}

async function toggle(row) {
	row.isOpen = !row.isOpen;
	if (!row.detail) {
		const id = `model-detail-${turn}-${row.element.offsetTop}`;
		row.detail = el("div", { role: "cell" });
		row.element.append(el("div.detail", { id, role: "row" }, row.detail));
		row.title.setAttribute("aria-controls", id);
	}
	row.title.setAttribute("aria-expanded", String(row.isOpen));
	row.element.classList.toggle("is-open", row.isOpen);
	row.detail.parentElement.hidden = !row.isOpen;
	if (row.isOpen) await describe(row);
}

/** Fills an open row, if anything in it has changed. */
async function describe(row) {
	const place = row.detail;
	try {
		const answer = await json(`/api/v1/models/${segment(row.name)}`);
		const content = JSON.stringify([answer, row.shown, feed.status.server.roles]);
		if (row.shownDetail === content) return;
		row.shownDetail = content;
		const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
		const unfolded = new Set([...place.querySelectorAll("details[open]")].map(one => one.dataset.of));
		// What is against a version that is held is shown with its trial.
		const others = row.model.versions.filter(({ state }) => state !== "HELD");
		replace(
			place,
			el("div.actions.start", actions(row.model)),
			failures({ versions: others }),
			lastError(row.model),
			undecided(answer),
			available(answer.versions).map(versionDetail),
			historyOf(answer),
		);
		for (const one of place.querySelectorAll("details")) one.open = unfolded.has(one.dataset.of);
		if (focused) [...place.querySelectorAll("button, summary")].find(one => one.textContent === focused)?.focus();
	} catch (error) {
		if (!row.shownDetail) replace(place, el("p.note.bad-text", error.message));
	}
}

/** The last request that failed. */
function lastError({ last_error: error }) {
	if (!error) return null;
	const title = `Last failed request: ${error.code}, ${clock(error.at)}`;
	return el("div.notice.last-error", icon("alert"), el("div", el("strong", title), el("p", error.message)));
}

/** The versions that are on trial, or held after it. */
function undecided(model) {
	const line = version => {
		const isHeld = version.state === "HELD";
		const waits = "Recorded requests run on it and on the version that serves. It serves once it has passed.";
		return el(
			"section.version-detail",
			el("h3", `Version ${version.version} `, chip(version.state), el("span.faint", ` since ${clock(version.since)}`)),
			isHeld ? objections(version) : el("p.faint", waits),
			isHeld && version.trial ? [el("h4", "Its trial"), report(version)] : null,
			el("div.actions.start", versionActions(model, version)),
		);
	};
	return model.versions.filter(({ state }) => state === "HELD" || state === "TRIAL").map(line);
}

function versionDetail(version) {
	const facts = [
		["Loaded in", millis(version.load_ms)],
		["Since", version.since ? clock(version.since) : NONE],
		["Files", bytes(version.memory_bytes)],
		["Warm-up", warmUp(version.warm_up)],
		["Optimization", optimization(version.optimization)],
		["Other engine", optimization(version.other_engine)],
		["Batching", batching(version.batching)],
		["Outside the model", externalOps(version.external_ops)],
		["Path", version.path],
	].filter(([, value]) => value !== undefined && value !== null);
	return el(
		"section.version-detail",
		el("h3", `Version ${version.version} `, chip(version.state)),
		el(
			"dl.facts",
			facts.map(([name, value]) => el("div", el("dt", name), el("dd", value))),
		),
		folded(version),
		signaturesOf(version).map(signatureTable),
	);
}

function warmUp(warm) {
	if (!warm) return NONE;
	if (warm.text) return warm.text;
	return warm.ran ? count(warm.records ?? 0, "recorded request") : "none";
}

/** Whether it runs in another form than it was loaded in, or in another engine. */
function optimization(form) {
	if (!form) return null;
	const { state, text, compared, cpu } = form;
	if (state === "running") return "looking for a form that takes less CPU time";
	if (state === "unchanged") return `none: ${text}`;
	if (state !== "optimized") return null;
	const same = count(compared, "equal result");
	const share = cpu > 1 ? `${Math.round((cpu - 1) * 100)} % more` : `${Math.round((1 - cpu) * 100)} % less`;
	return `${text}; ${share} CPU time, ${same}`;
}

/** The operations that access files, the network or Python. */
function externalOps(ops = []) {
	if (!ops.length) return null;
	const place = ({ node, function: name }) => (name === null ? `node ${node}` : `node ${node} of function ${name}`);
	return ops.map(external => `${external.op} ${external.access} (${place(external)})`).join(", ");
}

function batching(settings) {
	if (!settings || settings.batching === "off") return "off";
	const { max_batch_size: size, batch_timeout_micros: wait } = settings;
	return `${settings.batching ?? "on"}, at most ${count(size, "row")}, ${millis((wait ?? 0) / 1000)} queue delay`;
}

function signatureTable(signature) {
	const line = (way, tensor) =>
		el(
			"tr",
			el("td", way),
			el("td.code", tensor.name),
			el("td.code", tensor.dtype),
			el("td.code", shape(tensor.shape)),
			el("td.code.faint", tensor.tensor ?? ""),
		);
	const { joining } = signature;
	return el(
		"div.scroll",
		{ tabindex: 0, role: "region", "aria-label": `Signature ${signature.name}` },
		joining && el("p.faint", `Requests are ${joining.joins ? "" : "not "}joined: ${joining.why}`),
		el(
			"table.signature",
			el("caption", el("span.code", signature.name), el("span.faint", ` ${signature.method ?? ""}`)),
			el(
				"thead",
				el(
					"tr",
					el("th", { scope: "col" }, el("span.offscreen", "Direction")),
					["Name", "Type", "Shape", "Tensor"].map(name => el("th", { scope: "col" }, name)),
				),
			),
			el(
				"tbody",
				signature.inputs.map(one => line("in", one)),
				signature.outputs.map(one => line("out", one)),
			),
		),
	);
}

function historyOf({ history = [] }) {
	if (!history.length) return null;
	const line = ({ at, version, what, ms, who, error }) =>
		el(
			"li",
			{ class: error ? "bad" : null },
			el("time", clock(at)),
			el(
				"span",
				version === null ? what : `v${version} ${STATES[what.toUpperCase()]?.[0] ?? what}`,
				ms ? el("span.faint", ` in ${millis(ms)}`) : null,
				who ? el("span.faint", ` · ${who}`) : null,
				error ? el("p", error) : null,
			),
		);
	return el(
		"section.version-detail",
		el("h3", "History"),
		el("ol.history", history.toReversed().slice(0, 30).map(line)),
	);
}
