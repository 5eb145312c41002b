// The address of what is shown: `#try/digits?signature=columns`. It can be copied, reloaded and kept.

/** The panel, the model and the options of the address. */
export function read() {
	const hash = location.hash.slice(1);
	const [path] = hash.split("?", 1);
	const [panel, ...rest] = path.split("/");
	let model = null;
	try {
		model = rest.length ? decodeURIComponent(rest.join("/")) : null;
	} catch {
		// Not an address of this page.
	}
	return { panel, model, options: Object.fromEntries(new URLSearchParams(hash.slice(path.length + 1))) };
}

/** An address; options without a value are left out. */
export function format(panel, model = null, options = {}) {
	const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value));
	const of = model === null ? "" : `/${encodeURIComponent(model)}`;
	return `#${panel}${of}${query.size ? `?${query}` : ""}`;
}

/** Replaces the address, without a step in the history of the browser. */
export function write(panel, model, options) {
	const address = format(panel, model, options);
	if (location.hash !== address) history.replaceState(history.state, "", address);
}
