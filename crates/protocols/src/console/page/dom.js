// Builds elements. Text from the server becomes text, never markup: nothing in the page parses HTML,
// and the content security policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

const isProperties = value => value && Object.getPrototypeOf(value) === Object.prototype;

function fill(element, classes, parts) {
	if (classes.length) element.setAttribute("class", classes.join(" "));
	const properties = isProperties(parts[0]) ? parts.shift() : {};
	for (const [name, value] of Object.entries(properties)) {
		if (value === null || value === undefined || value === false) continue;
		if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
		else element.setAttribute(name, value === true ? "" : String(value));
	}
	element.append(...parts.flat(Infinity).filter(part => part !== null && part !== undefined));
	return element;
}

/** An element: `el("p.note", {id: "x"}, "text", child)`; classes and properties are optional. */
export function el(kind, ...parts) {
	const [tag, ...classes] = kind.split(".");
	return fill(document.createElement(tag), classes, parts);
}

/** The same, for SVG. */
export function svg(kind, ...parts) {
	const [tag, ...classes] = kind.split(".");
	return fill(document.createElementNS(SVG, tag), classes, parts);
}

/** An icon of the sprite in index.html. */
export function icon(name) {
	const picture = svg("svg.icon", { "aria-hidden": "true" });
	picture.append(svg("use", { href: `#icon-${name}` }));
	return picture;
}

/** A button; `properties.icon` names its icon. */
export function button(text, properties = {}) {
	const { icon: picture, ...others } = properties;
	const parts = picture ? [icon(picture), el("span", text)] : [text];
	return el("button", { type: "button", class: "button", ...others }, parts);
}

/** A name with places where a line may end: behind `_`, `-`, `.`, `/` and `:`, and not inside a word. */
export function breakable(name) {
	return name.split(/(?<=[_\-./:])(?=.)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

/** The element of this id. */
export function byId(id) {
	return document.getElementById(id);
}

/** Sets the text of an element if it differs, so that an update of many rows touches few. */
export function setText(element, text) {
	if (element.textContent !== text) element.textContent = text;
}

/** Replaces all children. */
export function replace(element, ...children) {
	element.replaceChildren(...children.flat(Infinity).filter(child => child !== null));
}

/** Sets the options of a `<select>` to `[value, text]` pairs; keeps the selection. */
export function options(menu, pairs) {
	const before = menu.value;
	const same =
		menu.options.length === pairs.length &&
		pairs.every(([value, text], i) => {
			const option = menu.options[i];
			return option.value === String(value) && option.text === text;
		});
	if (same) return;
	menu.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
	if (pairs.some(([value]) => String(value) === before)) menu.value = before;
}

/** Selects an option of a `<select>`, if a value is wanted and there is one of it. */
export function select(menu, value) {
	if (value && [...menu.options].some(option => option.value === value)) menu.value = value;
}

/** A radio group of `[value, text]` pairs; calls `chosen(value)`. */
export function segments(label, pairs, chosen) {
	const group = el("div.segments", { role: "radiogroup", "aria-label": label });
	const pick = (value, isUser) => {
		for (const one of group.children) {
			const is = one.dataset.value === value;
			one.setAttribute("aria-checked", String(is));
			one.tabIndex = is ? 0 : -1;
		}
		if (isUser) chosen(value);
	};
	for (const [value, text] of pairs) {
		const one = el("button", { type: "button", role: "radio", onclick: () => pick(value, true) }, text);
		one.dataset.value = value;
		group.append(one);
	}
	arrowKeys(
		group,
		() => [...group.children].filter(one => !one.hidden),
		one => one.click(),
	);
	pick(pairs[0][0], false);
	return { element: group, pick: value => pick(value, false) };
}

/** Arrow keys, Home and End move the focus among `items()`, as in a list of tabs. */
export function arrowKeys(element, items, moved) {
	element.addEventListener("keydown", event => {
		const all = items();
		const at = all.indexOf(document.activeElement);
		const to = {
			ArrowRight: at + 1,
			ArrowDown: at + 1,
			ArrowLeft: at - 1,
			ArrowUp: at - 1,
			Home: 0,
			End: all.length - 1,
		}[event.key];
		if (at < 0 || to === undefined) return;
		event.preventDefault();
		const next = all[(to + all.length) % all.length];
		next.focus();
		moved(next);
	});
}

/** Copies text to the clipboard, also in pages without a secure context. */
export async function copy(text) {
	if (navigator.clipboard && window.isSecureContext) {
		try {
			await navigator.clipboard.writeText(text);
			return true;
		} catch {
			// Refused: execCommand may still work.
		}
	}
	const area = el("textarea.offscreen", { "aria-hidden": "true", readonly: true });
	area.value = text;
	const focused = document.activeElement;
	document.body.append(area);
	area.select();
	const copied = document.execCommand("copy");
	area.remove();
	focused?.focus();
	return copied;
}

/** A button that copies the result of `text()`. */
export function copyButton(text, label = "Copy") {
	const words = el("span", { "aria-live": "polite" }, label);
	const self = el("button", { type: "button", class: "button quiet small" }, icon("copy"), words);
	self.addEventListener("click", async () => {
		words.textContent = (await copy(text())) ? "Copied" : "Press Ctrl+C";
		setTimeout(() => {
			words.textContent = label;
		}, 1600);
	});
	return self;
}

// Strings, comments, numbers and keywords that most languages share.
const TOKENS = new RegExp(
	[
		/("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)/,
		/(\/\/[^\n]*|(?<![^\s])#[^\n]*|(?<![^\s])--\s[^\n]*)/,
		/\b(true|false|null|None|nil|import|from|const|let|var|use|fn|func|def|class|return|if|for|new|await|async|print|require|package|public|static|void|try|using|end|local|my)\b/,
		/(?<![\w./])(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b/,
	]
		.map(one => one.source)
		.join("|"),
	"g",
);

/** Code with spans around its tokens; long text stays plain. */
export function highlighted(text) {
	if (text.length > 30_000) return [text];
	const parts = [];
	let end = 0;
	for (const match of text.matchAll(TOKENS)) {
		const kind = ["string", "comment", "keyword", "number"][match.slice(1).findIndex(Boolean)];
		parts.push(text.slice(end, match.index), el("span", { class: `code-${kind}` }, match[0]));
		end = match.index + match[0].length;
	}
	return [...parts, text.slice(end)];
}
