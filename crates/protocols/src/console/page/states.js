// The states of versions and models.

import { el, icon } from "./dom.js";

/** The name of each state of the API, and the kind of its chip. */
export const STATES = {
	FOUND: ["found", "busy"],
	LOADING: ["loading", "busy"],
	WARMING: ["warming", "busy"],
	TRIAL: ["on trial", "busy"],
	HELD: ["held", "bad"],
	AVAILABLE: ["ready", "good"],
	UNLOADING: ["draining", "busy"],
	FAILED: ["failed", "bad"],
	END: ["unloaded", "off"],
};

/** The kinds of models, in the order of the list. */
export const KINDS = [
	["bad", "Failing"],
	["busy", "In progress"],
	["good", "Ready"],
	["off", "Unloaded"],
];

/** The kind of a model: that of its version which comes first in the list. */
export function kindOf(model) {
	const kinds = new Set(
		model.versions.map(({ state, error }) => {
			const [, kind] = STATES[state] ?? [null, "off"];
			// A version that is ready and has an error refuses requests.
			return kind === "good" && error ? "bad" : kind;
		}),
	);
	return KINDS.find(([kind]) => kinds.has(kind))?.[0] ?? "off";
}

/** A chip for a state, with `text` before its name. */
export function chip(state, text = "") {
	const [name, kind] = STATES[state] ?? [String(state).toLowerCase(), "off"];
	return el("span", { class: `chip ${kind}` }, text ? el("b", text) : null, name);
}

/** What a version with an error does, by its state; others wait. */
const TROUBLES = { FAILED: "failed", HELD: "is held", AVAILABLE: "refuses requests" };

/** A notice for each version with an error. */
export function failures(model) {
	return model.versions
		.filter(version => version.error)
		.map(version =>
			el(
				"div.notice.bad",
				icon("alert"),
				el(
					"div",
					el("strong", `Version ${version.version} ${TROUBLES[version.state] ?? "is waiting"}`),
					el("p", version.error),
				),
			),
		);
}

/** The versions that are ready, the latest first. */
export function available(versions) {
	return versions.filter(({ state }) => state === "AVAILABLE").toSorted((a, b) => b.version - a.version);
}

/** What a model does that has no version that is ready, by its kind. */
const UNREADY = { bad: "failed", busy: "loading", off: "unloaded" };

/** What a model does that has no version that is ready; null if it has one. */
export function unready(model) {
	if (available(model.versions).length) return null;
	const states = new Set(model.versions.map(({ state }) => state));
	return states.has("HELD") && !states.has("FAILED") ? "held" : UNREADY[kindOf(model)];
}

/** The same as a sentence. */
export function unreadiness(model) {
	const does = unready(model);
	return `${model.name} ${does === "failed" ? "has" : "is"} ${does}.`;
}

/** The options of a menu of models: those that are ready come first, the others have their state. */
export function menuOf(models) {
	return models
		.toSorted((a, b) => Boolean(unready(a)) - Boolean(unready(b)))
		.map(model => [model.name, unready(model) ? `${model.name} (${unready(model)})` : model.name]);
}

/** The signatures for clients, the default one first. */
export function signaturesOf(version) {
	const all = (version?.signatures ?? []).filter(({ name }) => !name.startsWith("__saved_model_"));
	return all.toSorted((a, b) => (b.name === "serving_default") - (a.name === "serving_default"));
}
