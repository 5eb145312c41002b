// CSV files: their rows, the inputs that they fill, and a table of the first rows.

import { button, el } from "./dom.js";
import { count } from "./format.js";
import { MOST_ROWS } from "./inputs.js";

/** The rows that are shown. */
const SHOWN = 5;

/** A field, quoted or not, and what ends it: a comma, or the end of a line or of the text. */
const FIELD = /(?:"([^"]*(?:""[^"]*)*)"|)([^,\r\n]*)(,|\r\n?|\n|$)/g;

/** The fields of each row; empty lines are left out. */
function parse(text) {
	const rows = [];
	let row = [];
	for (const [, quoted, plain, end] of text.matchAll(FIELD)) {
		const isQuoted = quoted !== undefined;
		row.push(isQuoted ? quoted.replaceAll('""', '"') + plain : plain.trim());
		if (end === ",") continue;
		if (row.length > 1 || row[0] || isQuoted) rows.push(row);
		row = [];
	}
	return rows;
}

/** Fills the inputs by the names in the first line, else from left to right; returns what they got, for a table. */
export function fill(editors, text) {
	const inputs = editors.filter(one => one.columns);
	if (!inputs.length) throw new Error("No input of this signature accepts a CSV file.");
	let rows = parse(text);
	const [first = []] = rows;
	const header = first.map(name => name.replace(/\[\d+\]$/, ""));
	const missing = inputs.map(one => one.spec.name).filter(name => !header.includes(name));
	const byName = missing.length === 0;
	if (!byName && missing.length < inputs.length)
		throw new Error(`The first line of the CSV file lacks ${missing.join(", ")}.`);
	const areNumbers = inputs.every(one => one.spec.dtype !== "string");
	const isHeader = byName || (areNumbers && first.some(name => Number.isNaN(Number(name))));
	if (isHeader) rows = rows.slice(1);
	if (!rows.length || rows.length > MOST_ROWS)
		throw new Error(`The CSV file has ${count(rows.length, "row")}; the form takes 1 to ${MOST_ROWS}.`);
	rows.forEach((row, i) => {
		if (row.length !== first.length)
			throw new Error(
				`Row ${i + 1} of the CSV file has ${count(row.length, "field")}, the first line ${first.length}.`,
			);
	});
	const columns = [];
	for (const one of inputs) {
		const from = byName ? header.indexOf(one.spec.name) : columns.length;
		if (from + one.columns > first.length)
			throw new Error(`The CSV file has too few columns: ${one.spec.name} needs ${one.columns}.`);
		one.set(rows.map(row => row.slice(from, from + one.columns)));
		for (let i = 0; i < one.columns; i += 1)
			columns.push({ name: one.columns > 1 ? `${one.spec.name}[${i}]` : one.spec.name, at: from + i });
	}
	const unused = isHeader ? first.filter((_, at) => columns.every(column => column.at !== at)) : [];
	return { columns, rows, unused };
}

/** The first rows of a file; `edit()` shows the values as a form. */
export function table(file, { columns, rows, unused }, edit) {
	const more = rows.length > SHOWN ? `, the first ${SHOWN} of ${count(rows.length, "row")}` : "";
	const head = columns.map(({ name }) => el("th", { scope: "col" }, name));
	const line = (row, i) =>
		el(
			"tr",
			el("th", { scope: "row" }, String(i + 1)),
			columns.map(({ at }) => el("td", row[at] === "" ? el("span.faint", "missing") : row[at])),
		);
	return el(
		"div.stack",
		el(
			"div.between",
			el("h3", file.name, el("span.faint", more)),
			button("Edit", { class: "button small", onclick: edit }),
		),
		el(
			"div.scroll",
			{ tabindex: 0, role: "region", "aria-label": `First rows of ${file.name}` },
			el("table.first-rows", el("thead", el("tr", el("td"), head)), el("tbody", rows.slice(0, SHOWN).map(line))),
		),
		unused.length ? el("p.faint", `Not used: ${unused.join(", ")}`) : null,
	);
}
