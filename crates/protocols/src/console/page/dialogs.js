// Confirmations before a change, and messages after it.

import { byId, button, el, icon, replace } from "./dom.js";

const TOAST_TIME = 6000;

/**
 * Confirms a change. `explains` describes it; `fields` are form controls by name.
 * Returns their values, or null if the user cancels, also with Esc.
 */
export function confirm({ title, explains, fields = [], action, danger = false }) {
	const dialog = byId("confirm");
	const go = button(action, { type: "submit", value: "yes", class: danger ? "button danger" : "button primary" });
	const no = button("Cancel", { onclick: () => dialog.close("") });
	const form = el(
		"form",
		{ method: "dialog" },
		el("h2", { id: "confirm-title" }, title),
		...[explains].flat().map(line => el("p", line)),
		...fields.map(field),
		el("div.actions", no, go),
	);
	replace(dialog, form);
	dialog.returnValue = "";
	dialog.showModal();
	(form.querySelector("input, select") ?? go).focus();
	return new Promise(resolve => {
		dialog.addEventListener(
			"close",
			() => {
				const values = Object.fromEntries(new FormData(form));
				resolve(dialog.returnValue === "yes" ? values : null);
			},
			{ once: true },
		);
	});
}

/** A labelled input, or a select of `choices`. */
function field({ name, label, hint, choices, ...attributes }) {
	const control = choices
		? el(
				"select",
				{ name, ...attributes },
				choices.map(([value, text]) => el("option", { value }, text)),
			)
		: el("input", { name, autocomplete: "off", ...attributes });
	return el("label.field", el("span", label), control, hint ? el("small", hint) : null);
}

/** Shows a message in the corner, also to screen readers; returns a function that removes it. */
export function toast(text, kind = "good") {
	const close = el("button", { type: "button", class: "icon-button", "aria-label": "Dismiss" }, icon("close"));
	const message = el(
		"div",
		{ class: `toast ${kind}` },
		kind === "busy" ? el("i.spinner") : icon(kind === "good" ? "check" : "alert"),
		el("p", text),
		close,
	);
	const dismiss = () => message.remove();
	close.addEventListener("click", dismiss);
	byId("toasts").append(message);
	// Errors stay until they are dismissed.
	if (kind === "good") setTimeout(dismiss, TOAST_TIME);
	return dismiss;
}
