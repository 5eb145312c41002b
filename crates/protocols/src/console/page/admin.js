// What an admin may change. Each change is asked about first, and what came of it is told.

import { change, json, segment } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { button, byId, el, replace, setText } from "./dom.js";
import { feed } from "./feed.js";
import { ago, clock, number } from "./format.js";

/** The log is asked for again this often while it is looked at. */
const EVERY = 4000;

let shown = false;

export function start() {
	const form = byId("load-form");
	form.addEventListener("submit", event => {
		event.preventDefault();
		const { name, path } = form.elements;
		if (name.value.trim()) load(name.value.trim(), path.value.trim());
		else name.focus();
	});
	byId("drain").addEventListener("click", drain);
	feed.addEventListener("status", update);
	setInterval(() => shown && feed.isRunning && audit(), EVERY);
}

/** Called when the panel comes and goes. */
export function show(is) {
	shown = is;
	if (is) audit();
}

/** Whether whoever looks may change things. */
export function mayChange() {
	return feed.status.server.roles.includes("admin");
}

/** The buttons for a model. */
export function actions(model) {
	if (!mayChange()) return [];
	if (model.offline) return [button("Load…", { icon: "play", onclick: () => load(model.name, "") })];
	return [
		button("Labels…", { icon: "label", onclick: () => label(model) }),
		button("Batching…", { icon: "layers", onclick: () => batching(model) }),
		button("Unload…", { icon: "eject", class: "button danger-text", onclick: () => unload(model) }),
	];
}

/** Does what was agreed to, which can take as long as a load does, and says how it went. */
async function apply(words, ask) {
	const gone = toast("The server is at it…", "busy");
	try {
		await ask();
		toast(words);
	} catch (error) {
		toast(error.message, "bad");
	}
	gone();
	try {
		await feed.refresh();
	} catch {
		// The banner tells when the server is away.
	}
	if (shown) audit();
}

async function load(name, path) {
	const from = path ? `from the folder ${path}, which the server reads` : "from where it was before it was unloaded";
	const yes = await confirm({
		title: `Load ${name}?`,
		action: "Load",
		explains: [
			`The server loads ${name} ${from}. Requests for it are answered as soon as a version is ready.`,
			"A model is a program: load only what you trust.",
		],
	});
	if (!yes) return;
	await apply(`${name} is loaded.`, () => change(`/api/v1/models/${segment(name)}/load`, path ? { path } : {}));
}

async function unload(model) {
	const busy = model.versions.reduce((sum, version) => sum + version.requests_per_second, 0);
	const yes = await confirm({
		title: `Unload ${model.name}?`,
		action: "Unload",
		danger: true,
		explains: [
			`Every version of ${model.name} is taken out of service. Requests that have begun are finished; new ones are told that there is no such model.`,
			busy > 0 ? `It gets ${number(busy)} requests per second now.` : "It gets no requests now.",
		],
	});
	if (yes) await apply(`${model.name} is unloaded.`, () => change(`/api/v1/models/${segment(model.name)}/unload`));
}

async function label(model) {
	const versions = model.versions
		.filter(({ state }) => state === "AVAILABLE")
		.toSorted((a, b) => b.version - a.version);
	const now = Object.entries(model.labels ?? {})
		.map(([name, version]) => `${name} is version ${version}`)
		.join(", ");
	const answer = await confirm({
		title: `Labels of ${model.name}`,
		action: "Apply",
		explains: [
			now ? `Now ${now}.` : "It has no labels yet.",
			"Requests for a label go to its version from then on. “Remove” takes the label away.",
		],
		fields: [
			{
				name: "label",
				label: "Label",
				required: true,
				maxlength: 100,
				value: Object.keys(model.labels ?? {})[0] ?? "",
			},
			{
				name: "version",
				label: "Is",
				choices: [...versions.map(({ version }) => [version, `version ${version}`]), ["", "removed"]],
			},
		],
	});
	if (!answer) return;
	const base = `/api/v1/models/${segment(model.name)}/versions`;
	if (answer.version) {
		await apply(`${answer.label} is version ${answer.version} of ${model.name}.`, () =>
			change(`${base}/${answer.version}/labels`, { label: answer.label }),
		);
		return;
	}
	const version = model.labels?.[answer.label];
	if (version === undefined) return toast(`${model.name} has no label ${answer.label}.`, "bad");
	await apply(`${answer.label} is removed from ${model.name}.`, () =>
		change(`${base}/${version}/labels/${segment(answer.label)}`, {}, "DELETE"),
	);
}

async function batching(model) {
	let now = {};
	try {
		const detail = await json(`/api/v1/models/${segment(model.name)}`);
		now = detail.versions.find(({ batching: settings }) => settings)?.batching ?? {};
	} catch {
		// The fields then start with common values.
	}
	const answer = await confirm({
		title: `Batching of ${model.name}`,
		action: "Apply",
		explains:
			"Requests that come at the same time are joined into one batch, up to this many rows; the first of them waits no longer than this. It counts from the next batch on, for all versions.",
		fields: [
			{
				name: "rows",
				label: "Most rows in a batch",
				type: "number",
				min: 1,
				max: 65536,
				required: true,
				value: now.max_batch_size ?? 32,
			},
			{
				name: "wait",
				label: "Longest wait, in microseconds",
				type: "number",
				min: 0,
				max: 10_000_000,
				required: true,
				value: now.batch_timeout_micros ?? 0,
			},
		],
	});
	if (!answer) return;
	const settings = { max_batch_size: Number(answer.rows), batch_timeout_micros: Number(answer.wait) };
	await apply(`Batching of ${model.name} is changed.`, () =>
		change(`/api/v1/models/${segment(model.name)}/batching`, settings),
	);
}

function isDraining() {
	return feed.status.server.draining;
}

async function drain() {
	const draining = !isDraining();
	const yes = await confirm({
		title: draining ? "Drain this server?" : "Take it back into service?",
		action: draining ? "Drain" : "Take back",
		explains: draining
			? "It tells load balancers that it is not ready, so that they send new requests elsewhere. What still comes is served as before. Nothing is stopped."
			: "It tells load balancers again that it is ready.",
	});
	if (yes)
		await apply(draining ? "The server is draining." : "The server is back in service.", () =>
			change("/api/v1/drain", { draining }),
		);
}

function update() {
	const draining = isDraining();
	setText(byId("drain").querySelector("span"), draining ? "Take back into service…" : "Drain…");
	setText(byId("drain-state"), draining ? "Draining: load balancers are told to go elsewhere." : "In service.");
}

async function audit() {
	const place = byId("audit");
	try {
		const { entries } = await json("/api/v1/audit");
		const said = JSON.stringify(entries);
		if (place.dataset.said === said) return;
		place.dataset.said = said;
		const rows = entries
			.toSorted((a, b) => b.at - a.at)
			.slice(0, 100)
			.map(entry);
		replace(place, rows.length ? rows : el("tr", el("td", { colspan: 5, class: "faint" }, "Nothing was changed yet.")));
	} catch (error) {
		place.dataset.said = "";
		replace(place, el("tr", el("td", { colspan: 5, class: "bad-text" }, error.message)));
	}
}

function entry({ at, who, from, what, model, details, outcome }) {
	const more = details && Object.keys(details).length ? ` ${JSON.stringify(details)}` : "";
	const good = outcome === "ok";
	return el(
		"tr",
		el("td", { title: ago(at, feed.status.server.now) }, el("time", clock(at))),
		el("td", who ?? "anyone", el("span.faint", from ? ` ${from}` : "")),
		el("td", what),
		el("td", model ?? "", el("span.faint.code", more)),
		el("td", { class: good ? "good-text" : "bad-text" }, outcome),
	);
}
