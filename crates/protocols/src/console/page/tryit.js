// Tries a model: a form for its signature, the request in the chosen protocol, and the response.

import * as address from "./address.js";
import { json, segment, send, session } from "./api.js";
import { show as showAnswer } from "./answer.js";
import { fill as fillFrom, table } from "./csv.js";
import { byId, copyButton, el, highlighted, options, replace, segments, select, setText } from "./dom.js";
import { feed } from "./feed.js";
import { finder } from "./finder.js";
import { available, failures, menuOf, signaturesOf, unreadiness, unready } from "./states.js";
import { checkSize, kindOf } from "./files.js";
import { editor, Invalid, rowsControl } from "./inputs.js";
import { asCurl, asText, request, TAKES_ARRAYS, WIRES } from "./wires.js";

/** A header of every request. */
const ASKS_TIMING = { "X-Server-Timing": "1" };
const MOST_SHOWN = 6000;

const state = {
	model: null,
	detail: null,
	isMissing: false,
	why: "",
	signature: null,
	editors: [],
	wire: "tfs",
	mode: "form",
	array: null,
	isOwnText: false,
	isTable: false,
	turn: 0,
	sending: null,
};
let models;
let modes;
let wires;

export function start() {
	wires = segments("Protocol", WIRES, wire => {
		state.wire = wire;
		if (!TAKES_ARRAYS.has(wire)) state.array = null;
		state.isOwnText = false;
		fillText();
		draw();
	});
	byId("try-wire").append(wires.element);
	offerWires();
	modes = segments(
		"Request format",
		[
			["form", "Form"],
			["json", "JSON"],
		],
		mode => {
			state.mode = mode;
			if (mode === "json") fillText();
			draw();
		},
	);
	byId("try-mode").append(modes.element);
	byId("try-model").addEventListener("change", () => choose(byId("try-model").value));
	byId("try-version").addEventListener("change", () => {
		chooseSignature();
	});
	byId("try-signature").addEventListener("change", () => {
		chooseSignature();
	});
	byId("try-text").addEventListener("input", () => {
		state.isOwnText = true;
		draw();
	});
	byId("try-form").addEventListener("submit", event => {
		event.preventDefault();
		run();
	});
	byId("panel-try").addEventListener("keydown", event => {
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
			event.preventDefault();
			run();
		}
	});
	byId("try-request-tools").append(copyButton(() => byId("try-request").dataset.curl ?? "", "Copy as curl"));
	byId("try-request-tools").append(copyButton(() => byId("try-request").dataset.whole ?? ""));
	models = finder(byId("try-model"), "Find a model");
	byId("try-find").append(models.element);
	dropAnywhere(byId("try-form"));
	feed.addEventListener("status", listModels);
	feed.addEventListener("restart", () => state.model && choose(state.model));
}

/** Called when the panel is shown, with the model of the address if it has one. */
export function show(model, { version = "", signature = "", api = "" } = {}) {
	listModels();
	const isOther = model !== state.model || (signature && signature !== state.signature?.name);
	if (model && isOther) choose(model, { version, signature, api });
	else if (state.model) {
		state.wire = api || state.wire;
		offerWires();
		draw();
	} else if (byId("try-model").value) choose(byId("try-model").value, { api });
}

function listModels() {
	if (byId("panel-try").hidden) return;
	const all = feed.status.models;
	options(byId("try-model"), menuOf(all));
	byId("try-find").hidden = !models.isUseful();
	byId("try-none").hidden = all.length > 0;
	byId("try-form").hidden = all.length === 0;
	if (!state.model || !all.length) return;
	const now = all.find(({ name }) => name === state.model);
	const isShown = state.detail?.name === state.model;
	// The model that was selected may be gone, ready, or no longer ready; that of a link may be there at last.
	if (!now && isShown) choose(byId("try-model").options[0].value);
	else if (now && (state.isMissing || (isShown && whyNone(now) !== state.why))) choose(state.model);
}

/** What there is in place of a form, as text to compare; empty if there is one. */
function whyNone(model) {
	if (!unready(model)) return "";
	return JSON.stringify(model.versions.map(({ version, state: now, error }) => [version, now, error]));
}

/** Shows the form, or why there is none. */
function showReason(model) {
	state.why = whyNone(model);
	const isReady = state.why === "";
	for (const part of document.querySelectorAll("[data-of-form]")) part.hidden = !isReady;
	const box = byId("try-reason");
	box.hidden = isReady;
	if (isReady) return replace(box);
	const found = failures(model);
	const words = `${unreadiness(model)} This form appears when a version is ready.`;
	replace(box, found.length ? found : el("p.faint", words));
}

async function choose(name, wanted = {}) {
	state.model = name;
	byId("try-model").value = name;
	// The form is still that of another model.
	byId("try-send").disabled = true;
	state.isMissing = false;
	state.turn += 1;
	const { turn } = state;
	try {
		const detail = await json(`/api/v1/models/${segment(name)}`);
		if (turn !== state.turn) return;
		state.detail = detail;
	} catch (error) {
		if (turn !== state.turn) return;
		state.isMissing = true;
		return say(error.message);
	}
	const versions = available(state.detail.versions);
	showReason(state.detail);
	if (!versions.length) {
		state.signature = null;
		return keepAddress();
	}
	replace(byId("try-answer"), el("p.faint", "The response and its timing appear here."));
	const labels = Object.keys(state.detail.labels ?? {}).map(label => [`label:${label}`, `Label ${label}`]);
	options(byId("try-version"), [
		["", "Latest version"],
		...versions.map(({ version }) => [String(version), `Version ${version}`]),
		...labels,
	]);
	select(byId("try-version"), wanted.version);
	state.wire = wanted.api || state.wire;
	chooseSignature(wanted.signature);
	byId("try-send").disabled = false;
}

/** The selected version, resolved as the server does. */
function chosenVersion() {
	const versions = available(state.detail?.versions ?? []);
	const choice = byId("try-version").value;
	const label = choice.startsWith("label:");
	const number = label ? state.detail.labels[choice.slice(6)] : Number(choice);
	return versions.find(({ version }) => version === number) ?? versions[0];
}

function chooseSignature(wanted) {
	const signatures = signaturesOf(chosenVersion());
	options(
		byId("try-signature"),
		signatures.map(({ name }) => [name, name]),
	);
	if (signatures.some(({ name }) => name === wanted)) byId("try-signature").value = wanted;
	const preferred = signatures.find(({ name }) => name === byId("try-signature").value);
	const changed =
		state.signature === null ||
		JSON.stringify(preferred) !== JSON.stringify(state.signature) ||
		state.formOf !== state.model;
	state.signature = preferred ?? null;
	state.formOf = state.model;
	offerWires();
	if (changed) makeForm();
	state.isOwnText = false;
	fillText();
	draw();
}

/** Offers the protocols of the model: its folder decides whether `/invocations` is that of MLflow or of SageMaker. */
function offerWires() {
	const isMlflow = chosenVersion()?.mlflow_columns !== undefined;
	// MLflow's protocol has no name of a signature.
	const isOffered = { mlflow: isMlflow && state.signature?.name === "serving_default", sagemaker: !isMlflow };
	for (const one of wires.element.children) one.hidden = isOffered[one.dataset.value] === false;
	if (!WIRES.some(([wire]) => wire === state.wire && isOffered[wire] !== false))
		state.wire = isOffered.mlflow ? "mlflow" : WIRES[0][0];
	wires.pick(state.wire);
}

function makeForm() {
	const inputs = state.signature?.inputs ?? [];
	const example = state.signature?.example?.data ?? {};
	state.array = null;
	state.isTable = false;
	state.editors = inputs.map(input =>
		editor(input, example[input.name], () => {
			state.array = null;
			state.isOwnText = false;
			draw();
		}),
	);
	const none = inputs.length ? [] : [el("p.note", "This signature has no inputs.")];
	replace(
		byId("try-inputs"),
		rowsControl(state.editors, draw),
		state.editors.map(one => one.element),
		none,
	);
}

/** A file dropped anywhere on the form goes to an input that accepts it. */
function dropAnywhere(form) {
	form.addEventListener("dragover", event => event.preventDefault());
	form.addEventListener("drop", event => {
		event.preventDefault();
		takeFiles([...event.dataTransfer.files]);
	});
	byId("try-file").addEventListener("change", event => {
		takeFiles([...event.target.files]);
		event.target.value = "";
	});
}

async function takeFiles(files) {
	if (!files.length) return;
	say("");
	try {
		files.forEach(checkSize);
		const kind = kindOf(files[0]);
		if (kind === "npy") return takeArray(files[0]);
		if (kind === "csv") return await takeCsv(files[0]);
		const one = state.editors.find(each => each.takes?.(kind));
		if (!one) throw new Error(`No input of this signature accepts ${files[0].name}. Supported: images, CSV, .npy.`);
		state.mode = "form";
		modes.pick("form");
		await one.take(files);
	} catch (error) {
		say(error.message);
	}
}

function takeArray(file) {
	if (!TAKES_ARRAYS.has(state.wire)) throw new Error("This protocol does not support .npy files; select another one.");
	state.array = file;
	draw();
}

/** Fills the inputs from a CSV file, and shows its first rows in place of the form. */
async function takeCsv(file) {
	const taken = fillFrom(state.editors, await file.text());
	state.mode = "form";
	modes.pick("form");
	state.array = null;
	state.isOwnText = false;
	state.isTable = true;
	replace(byId("try-table"), table(file, taken, editTable));
	draw();
	byId("try-table").scrollIntoView({ block: "nearest" });
}

/** Shows the values of a CSV file as a form. */
function editTable() {
	state.isTable = false;
	draw();
	byId("try-inputs").querySelector("input, select")?.focus();
}

/** The selected model, version and signature. */
function chosen() {
	const choice = byId("try-version").value;
	const label = choice.startsWith("label:") ? choice.slice(6) : null;
	const columns = chosenVersion().mlflow_columns ?? [];
	const base = { model: state.model, signature: state.signature.name, version: choice, columns };
	if (!label) return base;
	// Only TensorFlow Serving's protocol and the Open Inference Protocol have labels; the others get the label's version.
	if (state.wire === "v2") return { ...base, version: label };
	return { ...base, ...(state.wire === "tfs" ? { label, version: "" } : { version: chosenVersion().version }) };
}

/** The form's inputs; throws `Invalid`. */
function filled() {
	return {
		...chosen(),
		inputs: state.editors.map(one => ({
			name: one.spec.name,
			dtype: one.spec.dtype,
			json: one.json(),
			rows: one.values?.(),
		})),
	};
}

/** The call as the user has entered it. */
function call() {
	if (state.mode === "json") return { ...chosen(), text: byId("try-text").value };
	if (state.array) return { ...chosen(), array: state.array };
	const only = state.editors.length === 1 ? state.editors[0].files : [];
	return { ...filled(), files: only };
}

/** Writes the form's request into the JSON text, unless that has been edited. */
function fillText() {
	if (state.isOwnText || !state.signature) return;
	let inputs;
	try {
		({ inputs } = filled());
	} catch {
		inputs = state.signature.inputs.map(({ name, dtype }) => ({ name, dtype, json: "[]" }));
	}
	byId("try-text").value = request(state.wire, { ...chosen(), inputs }).body;
}

/** Shows the HTTP request, or what is invalid in it. */
function draw() {
	keepAddress();
	if (!state.signature) return;
	byId("try-inputs").hidden = state.mode !== "form" || state.isTable;
	byId("try-table").hidden = state.mode !== "form" || !state.isTable;
	byId("try-json").hidden = state.mode !== "json";
	const rows = state.editors.find(one => one.hasRows)?.rows.length;
	if (rows) setText(byId("try-inputs").querySelector("output"), String(rows));
	for (const wrong of byId("try-inputs").querySelectorAll("[aria-invalid]")) wrong.removeAttribute("aria-invalid");
	const box = byId("try-request");
	try {
		const made = request(state.wire, call());
		box.dataset.curl = asCurl(made, document.baseURI, session.headers.Authorization);
		const whole = asText(made, { ...ASKS_TIMING, ...session.headers });
		box.dataset.whole = whole;
		const shown = whole.replace(
			/"([\w+/=-]{80})[\w+/=-]{200,}"/g,
			(all, head) => `"${head}… (${all.length - 2} characters)"`,
		);
		const cut = shown.length > MOST_SHOWN;
		replace(
			box,
			highlighted(cut ? shown.slice(0, MOST_SHOWN) : shown),
			cut ? `\n… ${shown.length - MOST_SHOWN} more characters` : "",
		);
		say("");
	} catch (error) {
		box.dataset.whole = "";
		box.dataset.curl = "";
		replace(box, el("span.faint", error.message));
		if (!(error instanceof Invalid)) say(error.message);
	}
}

/** Keeps the model, the version, the signature and the protocol in the address. */
function keepAddress() {
	if (byId("panel-try").hidden || !state.model) return;
	if (!state.signature) return address.write("try", state.model);
	address.write("try", state.model, {
		version: byId("try-version").value,
		signature: state.signature.name,
		api: state.wire === WIRES[0][0] ? "" : state.wire,
	});
}

function say(text) {
	setText(byId("try-error"), text);
}

async function run() {
	if (!state.signature || byId("try-send").disabled) return;
	let made;
	try {
		made = request(state.wire, call());
	} catch (error) {
		if (state.isTable && error.control) editTable();
		say(error.message);
		error.control?.setAttribute("aria-invalid", "true");
		error.control?.focus();
		return;
	}
	say("");
	state.sending?.abort();
	state.sending = new AbortController();
	const place = byId("try-answer");
	place.setAttribute("aria-busy", "true");
	try {
		const began = performance.now();
		const answer = await send(made.path, {
			method: "POST",
			headers: { ...made.headers, ...ASKS_TIMING },
			body: made.body,
			signal: state.sending.signal,
		});
		const text = await answer.text();
		const took = performance.now() - began;
		showAnswer(place, {
			status: answer.status,
			statusText: answer.statusText,
			text,
			took,
			timing: answer.headers.get("Server-Timing"),
		});
	} catch (error) {
		if (error.name !== "AbortError") replace(place, el("div.notice.bad", el("p", error.message)));
	} finally {
		place.removeAttribute("aria-busy");
	}
}
