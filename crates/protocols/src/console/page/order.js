// Which models are listed, and in which order.

import { write } from "./address.js";
import { byId, options, segments, setText } from "./dom.js";
import { wordsOf } from "./format.js";
import { KINDS } from "./states.js";

/** What a list can be sorted by: its title, the value of a row, and whether large values come first. */
const ORDERS = {
	state: ["Failures first", row => KINDS.findIndex(([kind]) => kind === row.kind), false],
	name: ["Name", () => null, false],
	requests: ["Requests", row => row.totals.rate, true],
	p50: ["p50", row => row.totals.p50, true],
	p99: ["p99", row => row.totals.p99, true],
	errors: ["Errors", row => row.totals.errors, true],
	rows: ["Rows/batch", row => row.totals.rowsPerBatch, true],
	files: ["Files", row => row.totals.files, true],
	used: ["Last used", row => row.totals.used, true],
};
const FIRST = "state";

const names = new Intl.Collator("en", { numeric: true });
const chosen = { by: FIRST, isDown: false, kind: "", words: [] };
let kinds;

/** Builds the controls; `changed()` is called when the user chooses. */
export function start(changed) {
	const took = () => {
		showOrder();
		keep();
		changed();
	};
	byId("models-filter").addEventListener("input", () => {
		chosen.words = wordsOf(byId("models-filter").value);
		took();
	});
	kinds = segments("State", [["", "All"], ...KINDS], kind => {
		chosen.kind = kind;
		took();
	});
	byId("models-kinds").append(kinds.element);
	options(
		byId("models-sort"),
		Object.entries(ORDERS).map(([by, [title]]) => [by, title]),
	);
	byId("models-sort").addEventListener("change", () => {
		sortBy(byId("models-sort").value, false);
		took();
	});
	for (const button of heads()) {
		// The menu is the stop of the keyboard for all of them.
		button.tabIndex = -1;
		button.addEventListener("click", () => {
			sortBy(button.dataset.sort, true);
			took();
		});
	}
	showOrder();
}

/** Takes the choices of the address, as of a link. */
export function open({ find = "", state = "", sort = FIRST, order = "" }) {
	byId("models-filter").value = find;
	chosen.words = wordsOf(find);
	chosen.kind = KINDS.some(([kind]) => kind === state) ? state : "";
	kinds.pick(chosen.kind);
	sortBy(sort in ORDERS ? sort : FIRST, false);
	if (order) chosen.isDown = order === "down";
	showOrder();
}

/** Compares two rows. Unknown values come last, whatever the direction. */
export function compare(a, b) {
	const [, value] = ORDERS[chosen.by];
	const [of, other] = [value(a), value(b)];
	const byName = names.compare(a.name, b.name);
	if (chosen.by === "name") return chosen.isDown ? -byName : byName;
	if (of === other) return byName;
	if (of === null || of === undefined) return 1;
	if (other === null || other === undefined) return -1;
	return chosen.isDown ? other - of : of - other;
}

/** Whether a row is listed. */
export function matches(row) {
	return (chosen.kind === "" || chosen.kind === row.kind) && chosen.words.every(word => row.search.includes(word));
}

/** Shows how many models of each kind there are. */
export function showCounts(rows) {
	const count = kind => rows.filter(row => kind === "" || row.kind === kind).length;
	for (const button of kinds.element.children) {
		const kind = button.dataset.value;
		const many = count(kind);
		const title = KINDS.find(([one]) => one === kind)?.[1] ?? "All";
		setText(button, `${title} ${many}`);
		button.hidden = many === 0 && kind !== "" && kind !== chosen.kind;
	}
}

function heads() {
	return document.querySelectorAll("#models-head button");
}

function sortBy(by, mayTurn) {
	const [, , isDown] = ORDERS[by];
	chosen.isDown = mayTurn && chosen.by === by ? !chosen.isDown : isDown;
	chosen.by = by;
}

function showOrder() {
	byId("models-sort").value = chosen.by;
	for (const button of heads()) {
		const is = button.dataset.sort === chosen.by;
		const cell = button.parentElement;
		if (is) cell.setAttribute("aria-sort", chosen.isDown ? "descending" : "ascending");
		else cell.removeAttribute("aria-sort");
	}
}

function keep() {
	if (byId("panel-overview").hidden) return;
	const [, , isDown] = ORDERS[chosen.by];
	write("overview", null, {
		find: byId("models-filter").value.trim(),
		state: chosen.kind,
		sort: chosen.by === FIRST ? "" : chosen.by,
		order: chosen.isDown === isDown ? "" : chosen.isDown ? "down" : "up",
	});
}
