// The changes that the admin role allows. Each is confirmed first, and its result is shown.

import { change, json, segment } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { button, byId, el, replace, setText } from "./dom.js";
import { feed } from "./feed.js";
import { ago, clock, number } from "./format.js";
import { available } from "./states.js";

/** Milliseconds between updates of the audit log while it is shown. */
const INTERVAL = 4000;

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
	setInterval(() => shown && feed.isRunning && audit(), INTERVAL);
}

/** Called when the panel is shown or hidden. */
export function show(isShown) {
	shown = isShown;
	if (shown) audit();
}

/** Whether the user has the admin role. */
export function isAdmin() {
	return feed.status.server.roles.includes("admin");
}

/** The buttons for a model. */
export function actions(model) {
	if (!isAdmin()) return [];
	if (model.offline) return [button("Load…", { icon: "play", onclick: () => load(model.name, "") })];
	return [
		button("Labels…", { icon: "label", onclick: () => label(model) }),
		button("Batching…", { icon: "layers", onclick: () => batching(model) }),
		button("Unload…", { icon: "eject", class: "button danger-text", onclick: () => unload(model) }),
	];
}

/** The buttons for a version that is held or on trial. */
export function versionActions(model, version) {
	if (!isAdmin()) return [];
	const name = `version ${version.version}`;
	const dropped = button(`Drop ${name}…`, {
		icon: "eject",
		class: "button danger-text",
		onclick: () => drop(model, version),
	});
	if (version.state !== "HELD") return [dropped];
	return [button(`Release ${name}…`, { icon: "check", onclick: () => release(model, version) }), dropped];
}

/** Makes a change, which can take as long as a load, and shows its result. */
async function apply(success, request) {
	const dismiss = toast("Applying the change…", "busy");
	try {
		await request();
		toast(success);
	} catch (error) {
		toast(error.message, "bad");
	}
	dismiss();
	try {
		await feed.refresh();
	} catch {
		// The banner shows a lost connection.
	}
	if (shown) audit();
}

async function load(name, path) {
	const from = path || "its configured path";
	const yes = await confirm({
		title: `Load ${name}?`,
		action: "Load",
		explains: [
			`The server loads ${name} from ${from}. It serves requests as soon as a version is ready.`,
			"A model is a program: load only models you trust.",
		],
	});
	if (!yes) return;
	await apply(`${name} is loaded.`, () => change(`/api/v1/models/${segment(name)}/load`, path ? { path } : {}));
}

async function unload(model) {
	const rate = model.versions.reduce((sum, version) => sum + version.requests_per_second, 0);
	const yes = await confirm({
		title: `Unload ${model.name}?`,
		action: "Unload",
		danger: true,
		explains: [
			`All versions of ${model.name} stop serving. Requests in flight complete; new requests get “not found”.`,
			`It now receives ${rate > 0 ? number(rate) : "no"} requests per second.`,
		],
	});
	if (yes) await apply(`${model.name} is unloaded.`, () => change(`/api/v1/models/${segment(model.name)}/unload`));
}

async function release(model, { version }) {
	const serving = available(model.versions)[0]?.version;
	const yes = await confirm({
		title: `Release version ${version} of ${model.name}?`,
		action: "Release",
		explains: [
			`Version ${version} serves from now on, although its trial is against it.`,
			serving === undefined
				? []
				: [
						`Version ${serving} is unloaded, unless the model's version policy keeps it.`,
						`Live requests are not watched: if they fail, version ${serving} does not come back by itself.`,
					],
		].flat(),
	});
	if (yes)
		await apply(`Version ${version} of ${model.name} is released.`, () =>
			change(`/api/v1/models/${segment(model.name)}/versions/${version}/release`),
		);
}

async function drop(model, { version, state }) {
	const serving = available(model.versions)[0]?.version;
	const yes = await confirm({
		title: `Drop version ${version} of ${model.name}?`,
		action: "Drop",
		danger: true,
		explains: [
			`${state === "TRIAL" ? "Its trial ends. " : ""}Version ${version} is unloaded, and not loaded again. Its files stay.`,
			serving === undefined
				? []
				: `Version ${serving} goes on to serve. A version with a higher number is tried as any other.`,
		].flat(),
	});
	if (yes)
		await apply(`Version ${version} of ${model.name} is dropped.`, () =>
			change(`/api/v1/models/${segment(model.name)}/versions/${version}/drop`),
		);
}

async function label(model) {
	const versions = available(model.versions);
	const current = Object.entries(model.labels ?? {})
		.map(([name, version]) => `${name} (version ${version})`)
		.join(", ");
	const answer = await confirm({
		title: `Labels of ${model.name}`,
		action: "Apply",
		explains: [`Labels: ${current || "none"}.`, "Requests that name this label use this version."],
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
				label: "Version",
				choices: [...versions.map(({ version }) => [version, `Version ${version}`]), ["", "None (remove)"]],
			},
		],
	});
	if (!answer) return;
	const base = `/api/v1/models/${segment(model.name)}/versions`;
	if (answer.version) {
		await apply(`Label ${answer.label} of ${model.name} is set to version ${answer.version}.`, () =>
			change(`${base}/${answer.version}/labels`, { label: answer.label }),
		);
		return;
	}
	const version = model.labels?.[answer.label];
	if (version === undefined) return toast(`${model.name} has no label ${answer.label}.`, "bad");
	await apply(`Label ${answer.label} of ${model.name} is removed.`, () =>
		change(`${base}/${version}/labels/${segment(answer.label)}`, {}, "DELETE"),
	);
}

async function batching(model) {
	let current = {};
	try {
		const detail = await json(`/api/v1/models/${segment(model.name)}`);
		current = detail.versions.find(({ batching: settings }) => settings)?.batching ?? {};
	} catch {
		// The fields then start with defaults.
	}
	const answer = await confirm({
		title: `Batching of ${model.name}`,
		action: "Apply",
		explains:
			"A batch runs when it has this many rows, or when its first request has waited this long. Applies to all versions, from the next batch on.",
		fields: [
			{
				name: "rows",
				label: "Maximum batch size, in rows",
				type: "number",
				min: 1,
				max: 65536,
				required: true,
				value: current.max_batch_size ?? 32,
			},
			{
				name: "wait",
				label: "Maximum queue delay, in microseconds",
				type: "number",
				min: 0,
				max: 10_000_000,
				required: true,
				value: current.batch_timeout_micros ?? 0,
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
		title: draining ? "Drain this server?" : "Stop draining?",
		action: draining ? "Drain" : "Stop draining",
		explains: draining
			? "The server reports not ready, so that load balancers send new requests elsewhere. It still serves every request that arrives."
			: "The server reports ready again as soon as every model is ready.",
	});
	if (yes)
		await apply(draining ? "The server is draining." : "Draining has stopped.", () =>
			change("/api/v1/drain", { draining }),
		);
}

function update() {
	const draining = isDraining();
	setText(byId("drain").querySelector("span"), draining ? "Stop draining…" : "Drain…");
	setText(byId("drain-state"), draining ? "Draining: the server reports not ready." : "Not draining.");
}

async function audit() {
	const place = byId("audit");
	try {
		const { entries } = await json("/api/v1/audit");
		const content = JSON.stringify(entries);
		if (place.dataset.shown === content) return;
		place.dataset.shown = content;
		const rows = entries
			.toSorted((a, b) => b.at - a.at)
			.slice(0, 100)
			.map(entry);
		replace(place, rows.length ? rows : el("tr", el("td", { colspan: 5, class: "faint" }, "No changes yet.")));
	} catch (error) {
		place.dataset.shown = "";
		replace(place, el("tr", el("td", { colspan: 5, class: "bad-text" }, error.message)));
	}
}

function entry({ at, who, from, what, model, details, outcome }) {
	const more = details && Object.keys(details).length ? ` ${JSON.stringify(details)}` : "";
	const good = outcome === "ok";
	return el(
		"tr",
		el("td", { title: ago(at, feed.status.server.now) }, el("time", clock(at))),
		el("td", who ?? "anonymous", el("span.faint", from ? ` ${from}` : "")),
		el("td", what),
		el("td", model ?? "", el("span.faint.code", more)),
		el("td", { class: good ? "good-text" : "bad-text" }, outcome),
	);
}
