// Generated clients for the models.

import * as address from "./address.js";
import { json, segment, text } from "./api.js";
import { arrowKeys, byId, copyButton, el, highlighted, options, replace, select, setText } from "./dom.js";
import { feed } from "./feed.js";
import { available, menuOf, signaturesOf, unreadiness, unready } from "./states.js";

const state = { languages: null, language: null, variant: null, model: null, detail: null, turn: 0 };

export function start() {
	byId("clients-model").addEventListener("change", () => choose(byId("clients-model").value));
	byId("clients-signature").addEventListener("change", write);
	byId("clients-variant").addEventListener("change", () => {
		state.variant = byId("clients-variant").value;
		write();
	});
	byId("clients-tools").append(copyButton(() => byId("clients-code").textContent));
	arrowKeys(
		byId("clients-languages"),
		() => [...byId("clients-languages").children],
		one => one.click(),
	);
	feed.addEventListener("status", listModels);
}

/** Called when the panel is shown, with the model of the address if it has one, and its options. */
export async function show(model, { signature, language, variant } = {}) {
	listModels();
	if (!state.languages) {
		try {
			({ languages: state.languages } = await json("/api/v1/clients"));
		} catch (error) {
			return say(error.message);
		}
		// The data of a request comes after the programs.
		state.languages.sort((a, b) => (a.id === "json") - (b.id === "json"));
		replace(byId("clients-languages"), state.languages.map(tab));
	}
	const named = state.languages.find(({ id }) => id === language);
	if (named || !state.language) pick(named ?? state.languages[0], variant);
	const name = model ?? state.model ?? byId("clients-model").value;
	if (name && name !== state.model) return choose(name, signature);
	select(byId("clients-signature"), signature);
	write();
}

function listModels() {
	if (byId("panel-clients").hidden) return;
	options(byId("clients-model"), menuOf(feed.status.models));
	const now = feed.status.models.find(({ name }) => name === state.model);
	if (now && state.detail?.name === state.model && Boolean(unready(now)) !== Boolean(unready(state.detail)))
		choose(state.model);
}

function tab(language) {
	const self = el(
		"button",
		{
			type: "button",
			role: "tab",
			id: `language-${language.id}`,
			"aria-controls": "clients-code",
			onclick: () => pick(language),
		},
		language.name,
	);
	self.dataset.id = language.id;
	return self;
}

function pick(language, variant) {
	state.language = language;
	for (const one of byId("clients-languages").children) {
		const is = one.dataset.id === language.id;
		one.setAttribute("aria-selected", String(is));
		one.tabIndex = is ? 0 : -1;
		if (is) one.scrollIntoView({ block: "nearest", inline: "nearest" });
	}
	byId("clients-code").setAttribute("aria-labelledby", `language-${language.id}`);
	const variants = language.variants ?? [];
	options(
		byId("clients-variant"),
		variants.map(({ id, name }) => [id, name]),
	);
	select(byId("clients-variant"), variant);
	state.variant = variants.length ? byId("clients-variant").value : null;
	byId("clients-variant-field").hidden = variants.length < 2;
	write();
}

async function choose(name, signature) {
	state.model = name;
	byId("clients-model").value = name;
	try {
		const detail = await json(`/api/v1/models/${segment(name)}`);
		if (name !== state.model) return;
		state.detail = detail;
	} catch (error) {
		return say(error.message);
	}
	if (unready(state.detail)) return sayWhyNone(state.detail);
	const [newest] = available(state.detail.versions);
	const names = signaturesOf(newest).map(one => [one.name, one.name]);
	options(byId("clients-signature"), names);
	select(byId("clients-signature"), signature);
	write();
}

async function write() {
	if (!state.language || state.detail?.name !== state.model || unready(state.detail)) return;
	keepAddress();
	state.turn += 1;
	const { turn } = state;
	const query = new URLSearchParams({ language: state.language.id });
	if (state.variant) query.set("variant", state.variant);
	const variant = state.language.variants?.find(({ id }) => id === state.variant);
	// The commands that install what it needs and run it.
	setText(byId("clients-hint"), [variant?.install, variant?.run].filter(Boolean).join(" && "));
	if (byId("clients-signature").value) query.set("signature", byId("clients-signature").value);
	try {
		const code = await text(`/v1/models/${segment(state.model)}/gen_client?${query}`);
		if (turn !== state.turn) return;
		say("");
		replace(byId("clients-code"), highlighted(code));
	} catch (error) {
		if (turn !== state.turn) return;
		replace(byId("clients-code"));
		say(error.message);
	}
}

/** Keeps the model, the signature and the language in the address; the first ones are left out. */
function keepAddress() {
	if (byId("panel-clients").hidden || !state.language) return;
	const { id, variants = [] } = state.language;
	address.write("clients", state.model, {
		signature: byId("clients-signature").value,
		language: id === state.languages[0].id ? "" : id,
		variant: state.variant === variants[0]?.id ? "" : state.variant,
	});
}

/** Shows why there are no clients for a model. */
function sayWhyNone(model) {
	state.turn += 1;
	replace(byId("clients-code"));
	options(byId("clients-signature"), []);
	keepAddress();
	const reasons = model.versions.flatMap(({ error }) => error ?? []);
	say([unreadiness(model), ...reasons].join(" "));
}

function say(words) {
	setText(byId("clients-error"), words);
}
