// A search field for a menu with many options.

import { breakable, el, icon, replace, setText } from "./dom.js";
import { count, wordsOf } from "./format.js";

/** A menu with fewer options needs no search. */
const MANY = 12;
/** The options that are listed. */
const SHOWN = 8;

/** The search field of a menu; what is chosen is then selected in the menu, as if the user had opened it. */
export function finder(select, label) {
	const id = `${select.id}-found`;
	const list = el("ul", { id, role: "listbox", "aria-label": label });
	const note = el("p.faint", { role: "status" });
	const found = el("div.matches", { hidden: true }, list, note);
	const field = el("input", {
		type: "text",
		role: "combobox",
		placeholder: `${label}…`,
		autocomplete: "off",
		spellcheck: "false",
		"aria-autocomplete": "list",
		"aria-controls": id,
		"aria-expanded": "false",
	});
	const element = el("div.finder", el("label.search", icon("search"), el("span.offscreen", label), field), found);
	let at = 0;

	const close = () => {
		found.hidden = true;
		field.setAttribute("aria-expanded", "false");
		field.removeAttribute("aria-activedescendant");
	};
	const mark = () => {
		[...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === at)));
		const chosen = list.children[at];
		if (chosen) field.setAttribute("aria-activedescendant", chosen.id);
		else field.removeAttribute("aria-activedescendant");
	};
	const take = value => {
		field.value = "";
		close();
		select.value = value;
		select.dispatchEvent(new Event("change", { bubbles: true }));
	};
	const search = () => {
		const words = wordsOf(field.value);
		if (!words.length) return close();
		const matches = [...select.options].filter(({ text }) => words.every(word => text.toLowerCase().includes(word)));
		const line = ({ value, text }, i) =>
			el("li", { role: "option", id: `${id}-${i}`, onclick: () => take(value), "data-value": value }, breakable(text));
		replace(list, matches.slice(0, SHOWN).map(line));
		const more = matches.length - SHOWN;
		setText(note, matches.length ? `and ${count(more, "more model")}` : "No model matches.");
		note.hidden = matches.length > 0 && more <= 0;
		at = 0;
		mark();
		found.hidden = false;
		field.setAttribute("aria-expanded", "true");
	};

	field.addEventListener("input", search);
	field.addEventListener("focus", search);
	field.addEventListener("blur", close);
	// A click on a match does not take the focus, which would close the list first.
	found.addEventListener("mousedown", event => event.preventDefault());
	field.addEventListener("keydown", event => {
		if (event.key === "Escape") {
			field.value = "";
			return close();
		}
		const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
		const many = list.children.length;
		if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
			event.preventDefault();
			if (!found.hidden && many) take(list.children[at].dataset.value);
		} else if (step && !found.hidden && many) {
			event.preventDefault();
			at = (at + step + many) % many;
			mark();
		}
	});
	return { element, isUseful: () => select.options.length >= MANY };
}
