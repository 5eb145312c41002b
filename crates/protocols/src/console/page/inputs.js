// Controls for the inputs of a signature. Each returns JSON text: numbers go to the server as typed,
// not as JavaScript would round them.

import { button, el, icon, options, replace } from "./dom.js";
import { base64, picture, pictureShape, pixels, SCALES } from "./files.js";
import { shape } from "./format.js";

/** Wider rows are edited as JSON. */
const MOST_COLUMNS = 24;
export const MOST_ROWS = 200;

/** A value that cannot be sent, with its control. */
export class Invalid extends Error {
	constructor(message, control) {
		super(message);
		this.control = control;
	}
}

/** The control for an input; `changed` is called after every change. */
export function editor(spec, example, changed) {
	if (spec.kind === "image") return new Images(spec, changed);
	const columns = columnsOf(spec.shape);
	return columns === null ? new Area(spec, example, changed) : new Cells(spec, columns, example, changed);
}

/** The cells of a row; 0 for a scalar, null for what is edited as JSON. */
function columnsOf(sizes) {
	if (!sizes) return null;
	if (sizes.length === 0) return 0;
	if (sizes[0] > MOST_ROWS) return null;
	if (sizes.length === 1) return 1;
	const fits = sizes.length === 2 && sizes[1] > 0 && sizes[1] <= MOST_COLUMNS;
	return fits ? sizes[1] : null;
}

/** The JSON of one value as it was typed. */
function scalar(text, spec, control) {
	const typed = text.trim();
	if (typed === "" && spec.may_be_missing) return "null";
	const wrong = expected => {
		const got = typed === "" ? "an empty value" : `“${typed.slice(0, 40)}”`;
		throw new Invalid(`${spec.name}: ${got} is not ${expected}.`, control);
	};
	if (spec.dtype === "string") return JSON.stringify(text);
	if (spec.dtype === "bool") return /^(true|false)$/i.test(typed) ? typed.toLowerCase() : wrong("true or false");
	if (/int/.test(spec.dtype)) {
		const pattern = spec.dtype.startsWith("u") ? /^(0|[1-9]\d*)$/ : /^-?(0|[1-9]\d*)$/;
		return pattern.test(typed) ? typed : wrong(`a whole number of type ${spec.dtype}`);
	}
	if (/^(NaN|-?Infinity)$/.test(typed)) return typed;
	if (typed === "" || !Number.isFinite(Number(typed)) || /^[-+]?0[xob]/i.test(typed))
		return wrong(`a number of type ${spec.dtype}`);
	return /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(typed) ? typed : String(Number(typed));
}

function frame(spec, ...children) {
	return el(
		"fieldset.input",
		el("legend", el("span.code", spec.name), el("span.type", `${spec.dtype} ${shape(spec.shape)}`)),
		children,
	);
}

/** The first of the values that an encoder knows. */
function listed(values) {
	const more = values.length > 8 ? ` and ${values.length - 8} more` : "";
	return `Values: ${values.slice(0, 8).join(", ")}${more}`;
}

/** Rows of cells. */
class Cells {
	constructor(spec, columns, example, changed) {
		Object.assign(this, { spec, columns, changed, files: [] });
		this.sizes = spec.shape;
		this.hasRows = columns > 0 && spec.shape[0] < 0;
		this.body = el("div.cells");
		this.known = spec.categories ?? [];
		const values = this.known.map(value => el("option", { value }));
		const list = this.known.length ? el("datalist", { id: `values-${spec.name}` }, values) : [];
		const words = this.known.length ? el("p.type", listed(this.known)) : [];
		this.element = frame(spec, words, el("div.scroll", this.body), list);
		const rows = columns === 0 ? [[example]] : [].concat(example ?? []).map(row => [].concat(row));
		// The value of the example may be none that the encoder knows.
		const known = value => (this.known.includes(String(value)) ? value : (this.known[0] ?? value));
		this.set(rows.length ? rows.map(row => row.map(known)) : [[]]);
	}

	get rows() {
		return [...this.body.children];
	}

	set(rows) {
		const fixed = this.sizes[0] > 0 ? this.sizes[0] : null;
		const many = fixed ?? Math.min(rows.length, MOST_ROWS);
		replace(
			this.body,
			Array.from({ length: many }, (_, i) => this.row(i, rows[i] ?? [])),
		);
	}

	row(index, values) {
		const cells = Math.max(this.columns, 1);
		const width = cells === 1 ? "row-of-one" : "row-of-many";
		return el(
			"div",
			{ class: `cell-row ${width}` },
			Array.from({ length: cells }, (_, column) => this.cell(index, column, values[column])),
		);
	}

	cell(index, column, value) {
		const { spec } = this;
		const label =
			this.columns > 1 ? `${spec.name}, row ${index + 1}, column ${column + 1}` : `${spec.name}, row ${index + 1}`;
		const fallback = this.known[0] ?? { string: "", bool: "true" }[spec.dtype] ?? "1";
		const common = { "aria-label": label, onchange: this.changed, oninput: this.changed };
		if (spec.dtype === "bool") {
			const choice = el("select", common);
			options(choice, [
				["true", "true"],
				["false", "false"],
			]);
			choice.value = String(value ?? fallback).toLowerCase();
			return choice;
		}
		const mode = spec.dtype === "string" ? "text" : "decimal";
		const control = el("input", {
			type: "text",
			inputmode: mode,
			autocomplete: "off",
			spellcheck: "false",
			list: this.known.length ? `values-${spec.name}` : null,
			placeholder: spec.may_be_missing ? "missing" : spec.dtype === "string" ? "text" : "",
			...common,
		});
		control.value = value ?? fallback;
		return control;
	}

	setRows(many) {
		if (!this.hasRows) return;
		while (this.rows.length > many) this.body.lastElementChild.remove();
		while (this.rows.length < many) {
			const last = this.rows.at(-1);
			const values = last ? [...last.children].map(one => one.value) : [];
			this.body.append(this.row(this.rows.length, values));
		}
	}

	/** The JSON of each value, by rows. */
	values() {
		return this.rows.map(row => [...row.children].map(one => scalar(one.value, this.spec, one)));
	}

	json() {
		const rows = this.values();
		if (this.columns === 0) return rows[0][0];
		const flat = this.sizes.length === 1;
		return `[${rows.map(row => (flat ? row[0] : `[${row.join(", ")}]`)).join(", ")}]`;
	}
}

/** JSON text, for tensors without rows and columns; an image can fill it. */
class Area {
	constructor(spec, example, changed) {
		Object.assign(this, { spec, changed, hasRows: false, files: [] });
		this.target = spec.dtype === "string" ? null : pictureShape(spec.shape);
		this.area = el("textarea.code", {
			rows: 5,
			spellcheck: "false",
			"aria-label": `${spec.name}, as JSON`,
			oninput: changed,
		});
		this.area.value = compact(example ?? synthetic(spec));
		const parts = [this.area];
		if (this.target) parts.unshift(this.fromPicture());
		this.element = frame(spec, parts);
	}

	fromPicture() {
		this.scale = el("select", {
			"aria-label": `Pixel values of ${this.spec.name}`,
			onchange: () => this.draw(),
		});
		options(this.scale, SCALES);
		this.scale.value = /int/.test(this.spec.dtype) ? "byte" : "unit";
		this.thumb = el("div.thumbs");
		this.error = el("p.field-error", { role: "alert" });
		const { height, width, channels } = this.target;
		const size = side => (side > 0 ? side : "any");
		const words = `Drop an image here: ${size(height)} × ${size(width)}, ${channels === 1 ? "greyscale" : channels === 3 ? "RGB" : "RGBA"}`;
		return el(
			"div",
			dropZone(words, "image/*", files => this.take(files)),
			this.thumb,
			this.error,
			el("label.inline", el("span", "Pixel values"), this.scale),
		);
	}

	/** Whether it accepts this kind of file. */
	takes(kind) {
		return kind === "image" && this.target !== null;
	}

	async take([file]) {
		this.error.textContent = "";
		try {
			this.image = await picture(file);
			replace(this.thumb, preview(this.image, file));
			this.draw();
		} catch (error) {
			this.error.textContent = error.message;
		}
	}

	draw() {
		if (!this.image) return;
		this.area.value = JSON.stringify([pixels(this.image, this.target, this.scale.value)]);
		this.changed();
	}

	setRows() {}

	json() {
		const text = this.area.value.trim();
		try {
			JSON.parse(text.replace(/(?<![\w"])-?(NaN|Infinity)(?![\w"])/g, "0"));
		} catch (error) {
			throw new Invalid(`${this.spec.name}: invalid JSON (${error.message}).`, this.area);
		}
		return text;
	}
}

/** Image files, for an input of strings. */
class Images {
	constructor(spec, changed) {
		Object.assign(this, { spec, changed, hasRows: false, files: [], texts: [] });
		this.list = el("div.thumbs");
		this.error = el("p.field-error", { role: "alert" });
		this.zone = dropZone("Drop images here", "image/*", files => this.take(files), true);
		this.element = frame(spec, this.zone, this.list, this.error);
	}

	takes(kind) {
		return kind === "image" || kind === "other";
	}

	async take(files) {
		this.error.textContent = "";
		for (const file of files) {
			try {
				const image = await picture(file);
				const text = await base64(file);
				const entry = { file, text };
				const remove = el(
					"button",
					{ type: "button", class: "icon-button", "aria-label": `Remove ${file.name}` },
					icon("close"),
				);
				const shown = preview(image, file, remove);
				remove.addEventListener("click", () => {
					this.texts.splice(this.texts.indexOf(entry), 1);
					shown.remove();
					this.#update();
				});
				this.texts.push(entry);
				this.list.append(shown);
			} catch (error) {
				this.error.textContent = error.message;
			}
		}
		this.#update();
	}

	#update() {
		this.files = this.texts.map(({ file }) => file);
		this.changed();
	}

	setRows() {}

	json() {
		if (!this.texts.length)
			throw new Invalid(`${this.spec.name}: an image is missing.`, this.zone.querySelector("input"));
		// A graph that decodes base64 itself takes URL-safe text.
		const own = text => JSON.stringify(text.replaceAll("+", "-").replaceAll("/", "_"));
		const value = ({ text }) => (this.spec.encoding === "base64" ? own(text) : `{"b64": "${text}"}`);
		const all = this.texts.map(value).join(", ");
		return this.spec.shape?.length === 0 ? value(this.texts[0]) : `[${all}]`;
	}
}

/** A drop target, which is also the label of a file chooser. */
function dropZone(words, accept, taken, multiple = false) {
	const chooser = el("input", { type: "file", accept, multiple });
	const zone = el("label.drop", icon("image"), el("span", words, el("small", "or choose a file")), chooser);
	chooser.addEventListener("change", () => {
		if (chooser.files.length) taken([...chooser.files]);
		chooser.value = "";
	});
	const over = is => event => {
		event.preventDefault();
		zone.classList.toggle("is-over", is);
	};
	zone.addEventListener("dragover", over(true));
	zone.addEventListener("dragleave", over(false));
	zone.addEventListener("drop", event => {
		over(false)(event);
		event.stopPropagation();
		const files = [...event.dataTransfer.files];
		if (files.length) taken(multiple ? files : files.slice(0, 1));
	});
	return zone;
}

function preview(image, file, ...more) {
	image.alt = file.name;
	const size = `${image.naturalWidth} × ${image.naturalHeight}`;
	return el("figure.thumb", image, el("figcaption", el("span", file.name), el("small", size)), more);
}

/** A value of the declared shape, for signatures without an example. */
function synthetic(spec) {
	const one = spec.dtype === "string" ? "" : spec.dtype === "bool" ? true : 1;
	const level = ([size, ...rest]) => {
		if (size === undefined) return one;
		return Array.from({ length: size < 0 ? 1 : Math.min(size, 4096) }, () => level(rest));
	};
	return level(spec.shape ?? [1]);
}

function compact(value) {
	return JSON.stringify(value)
		.replaceAll("],[", "],\n[")
		.replace(/,(?=[\d-])/g, ", ");
}

/** Sets the number of rows of all inputs whose 0-th dimension is open. */
export function rowsControl(editors, changed) {
	const those = editors.filter(one => one.hasRows);
	if (!those.length) return null;
	const shown = el("output");
	const by = step => () => {
		const many = Math.min(MOST_ROWS, Math.max(1, those[0].rows.length + step));
		those.forEach(one => one.setRows(many));
		changed();
	};
	return el(
		"div.rows-control",
		el("span", "Rows"),
		button("−", { class: "button small square", "aria-label": "Remove a row", onclick: by(-1) }),
		shown,
		button("+", { class: "button small square", "aria-label": "Add a row", onclick: by(1) }),
	);
}
