// A response: its text, its timing, and bars for probabilities in it.

import { copyButton, el, highlighted, replace } from "./dom.js";
import { bytes, millis, percent } from "./format.js";

/** The rows and classes that are drawn. */
const MOST_ROWS = 4;
const TOP = 5;
/** Longer text is cut in the page, not in the copy. */
const MOST_TEXT = 60_000;

/** Shows a response: `{status, statusText, text, timing, took}`. */
export function show(place, answer) {
	const isGood = answer.status >= 200 && answer.status < 300;
	const status = el(
		"div.answer-head",
		el("span", { class: `chip ${isGood ? "good" : "bad"}` }, el("b", String(answer.status)), answer.statusText),
		el("span.faint", `${millis(answer.took)} · ${bytes(answer.text.length)}`),
		copyButton(() => answer.text),
	);
	const cut = answer.text.length > MOST_TEXT;
	const text = cut
		? `${answer.text.slice(0, MOST_TEXT)}\n… ${bytes(answer.text.length - MOST_TEXT)} more`
		: answer.text;
	replace(
		place,
		status,
		waterfall(answer),
		isGood ? bars(answer.text) : null,
		el("pre.code-box", { tabindex: 0, id: "try-answer-text" }, highlighted(text)),
	);
}

/** `queue;dur=0.012, run;dur=0.405` as numbers. */
function timings(header) {
	const parts = (header ?? "").split(",").map(part => part.trim().match(/^([\w-]+);.*?dur=([\d.]+)/));
	return Object.fromEntries(parts.filter(Boolean).map(([, name, time]) => [name, Number(time)]));
}

/** The phases of a request in the server, and its time in the browser. */
function waterfall({ timing, took }) {
	const { total, queue = 0, run = 0 } = timings(timing);
	if (total === undefined) return null;
	const rest = Math.max(0, total - queue - run);
	const whole = rest + queue + run || 1;
	let start = 0;
	const line = ([name, time, color]) => {
		const bar = el("span", { class: `bar ${color}` });
		bar.style.marginLeft = `${(100 * start) / whole}%`;
		bar.style.width = `max(2px, ${(100 * time) / whole}%)`;
		start += time;
		return barLine(name, bar, millis(time));
	};
	const parts = [
		["decode and encode", rest, "c2"],
		["queue delay", queue, "c4"],
		["run", run, "c1"],
	];
	const words = ` ${millis(total)} in the server, ${millis(took)} in the browser`;
	return el("section.waterfall", el("h3", "Timing", el("span.faint", words)), el("ol", parts.map(line)));
}

/** A bar between its name and its value. */
function barLine(name, bar, value) {
	return el("li", el("span.name", name), el("span.track", bar), el("span.time", value));
}

/** The outputs of a response by name, for each protocol. */
function outputs(text) {
	try {
		const answer = JSON.parse(text);
		const found = answer.outputs ?? answer.predictions ?? answer;
		if (!Array.isArray(found)) return found;
		const named = found.length && typeof found[0] === "object" && !Array.isArray(found[0]);
		if (!named) return { output: found };
		return Object.fromEntries(Object.keys(found[0]).map(name => [name, found.map(row => row[name])]));
	} catch {
		return {};
	}
}

const isShare = value => typeof value === "number" && value >= 0 && value <= 1;
const isShares = row => Array.isArray(row) && row.length > 1 && row.length <= 2000 && row.every(isShare);

/** The classes with the highest values in each row, if an output looks like probabilities. */
function bars(text) {
	const all = outputs(text);
	if (typeof all !== "object" || all === null) return null;
	const found = Object.entries(all).find(([, rows]) => Array.isArray(rows) && rows.length > 0 && rows.every(isShares));
	if (!found) return null;
	const [name, rows] = found;
	const names = Object.values(all).find(
		other =>
			Array.isArray(other) &&
			other.every(
				(row, i) => Array.isArray(row) && row.length === rows[i]?.length && row.every(one => typeof one === "string"),
			),
	);
	const shown = rows
		.slice(0, MOST_ROWS)
		.map((row, i) => topOf(row, names?.[i], rows.length > 1 ? `Row ${i + 1}` : null));
	const more = rows.length > MOST_ROWS ? el("p.faint", `and ${rows.length - MOST_ROWS} more rows`) : null;
	return el("section.likely", el("h3", "Highest ", el("span.code", name)), shown, more);
}

function topOf(row, names, title) {
	const best = row
		.map((value, i) => ({ value, name: names?.[i] ?? String(i) }))
		.toSorted((a, b) => b.value - a.value)
		.slice(0, TOP);
	const line = ({ value, name }, i) => {
		const bar = el("span", { class: `bar ${i === 0 ? "c1" : "c0"}` });
		bar.style.width = `max(2px, ${100 * value}%)`;
		return barLine(name, bar, percent(100 * value));
	};
	return el("div", title ? el("h4", title) : null, el("ol", best.map(line)));
}
