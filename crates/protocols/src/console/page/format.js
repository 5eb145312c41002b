// Formats numbers, sizes and times.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Stands for an unknown value. */
export const NONE = "–";

/** A number with about three significant digits. */
export function number(value) {
	if (value === null || value === undefined || Number.isNaN(value)) return NONE;
	const size = Math.abs(value);
	if (Number.isInteger(value) && size < 1000) return String(value);
	if (size >= 1e6) return `${trim((value / 1e6).toPrecision(3))}M`;
	if (size >= 100 || Number.isInteger(value)) return WHOLE.format(value);
	return trim(value.toFixed(size >= 10 ? 1 : 2));
}

/** A duration, given in milliseconds. */
export function millis(value) {
	if (value === null || value === undefined) return NONE;
	if (value < 0.01 && value > 0) return "<0.01 ms";
	if (value >= 60_000) return duration(value / 1000);
	return value >= 1000 ? `${trim((value / 1000).toPrecision(3))} s` : `${number(value)} ms`;
}

/** A size in bytes. */
export function bytes(value) {
	if (value === null || value === undefined) return NONE;
	let [size, unit] = [value, 0];
	while (size >= 1000 && unit < 5) [size, unit] = [size / 1024, unit + 1];
	const digits = unit === 0 || size >= 100 ? 0 : 1;
	return `${size.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** A percentage. */
export function percent(value) {
	if (value === null || value === undefined) return NONE;
	if (value > 0 && value < 0.1) return "<0.1 %";
	return `${value >= 10 ? value.toFixed(0) : trim(value.toFixed(1))}\u00a0%`;
}

/** Whether this percentage of errors is highlighted. */
export function isMuch(errors) {
	return errors >= 1;
}

/** A duration in seconds, in its two largest units. */
export function duration(seconds) {
	const total = Math.max(0, Math.floor(seconds));
	const [days, hours] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24];
	const minutes = Math.floor(total / 60) % 60;
	if (days) return `${days} d ${hours} h`;
	if (hours) return `${hours} h ${minutes} min`;
	return minutes ? `${minutes} min ${total % 60} s` : `${total} s`;
}

/** The time since `at`. */
export function ago(at, now) {
	if (at === null || at === undefined) return "never";
	const seconds = (now - at) / 1000;
	if (seconds < 2) return "now";
	if (seconds < 60) return `${Math.floor(seconds)} s ago`;
	if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
	return seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} d ago`;
}

/** The time of day of a Unix time in milliseconds. */
export function clock(at, withSeconds = true) {
	const seconds = withSeconds ? { second: "2-digit" } : {};
	return new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...seconds });
}

/** A shape: `[?, 28, 28]`. */
export function shape(sizes) {
	if (!sizes) return "any shape";
	return `[${sizes.map(size => (size < 0 ? "?" : size)).join(", ")}]`;
}

/** "1 model", "3 models". */
export function count(many, noun) {
	return `${WHOLE.format(many)} ${noun}${many === 1 ? "" : "s"}`;
}

/** The words that a search looks for. */
export function wordsOf(text) {
	return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function trim(text) {
	return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}
