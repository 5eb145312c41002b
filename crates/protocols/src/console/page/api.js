// Asks the server, as whoever has logged in.

const KEPT_AS = "tensorserve.authorization";

/** Said with every request: the server then leaves logging in to this page. */
const ASKED_BY = { "X-Requested-With": "tensorserve" };

/** An answer that is a failure; `status` is 0 if there was no answer. */
class Failure extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

/** Credentials, for as long as the tab is open. They go nowhere but into the header. */
class Session {
	#authorization = null;

	constructor() {
		try {
			this.#authorization = sessionStorage.getItem(KEPT_AS);
		} catch {
			// Storage is switched off: then they last until the page is left.
		}
	}

	get isLoggedIn() {
		return this.#authorization !== null;
	}

	useKey(key) {
		this.#keep(`Bearer ${key}`);
	}

	usePassword(user, password) {
		const bytes = new TextEncoder().encode(`${user}:${password}`);
		this.#keep(`Basic ${btoa(String.fromCharCode(...bytes))}`);
	}

	forget() {
		this.#keep(null);
	}

	get headers() {
		return this.#authorization ? { ...ASKED_BY, Authorization: this.#authorization } : ASKED_BY;
	}

	#keep(authorization) {
		this.#authorization = authorization;
		try {
			if (authorization) sessionStorage.setItem(KEPT_AS, authorization);
			else sessionStorage.removeItem(KEPT_AS);
		} catch {
			// As above.
		}
	}
}

export const session = new Session();

/** Where a path of the server is, also behind a proxy that puts a prefix before it. */
export function url(path) {
	return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

/** One segment of a path. */
export function segment(name) {
	return encodeURIComponent(name);
}

/** Sends a request as it is; a failure to get any answer is a `Failure` too. */
export async function send(path, init = {}) {
	const headers = { ...session.headers, ...init.headers };
	try {
		return await fetch(url(path), { cache: "no-store", ...init, headers });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Failure(`The server does not answer (${error.message}).`, 0);
	}
}

/** The text of an answer; its error as a `Failure` if it is one. */
export async function text(path, init = {}) {
	const answer = await send(path, init);
	const body = await answer.text();
	if (!answer.ok) throw new Failure(reason(body, answer), answer.status);
	return body;
}

/** The JSON of an answer. */
export async function json(path, init = {}) {
	const body = await text(path, init);
	try {
		return JSON.parse(body);
	} catch {
		throw new Failure(`What ${path} answered is not JSON.`, 200);
	}
}

/** Asks for a change. */
export function change(path, body = {}, method = "POST") {
	const headers = { "Content-Type": "application/json" };
	return json(path, { method, headers, body: JSON.stringify(body) });
}

function reason(body, answer) {
	try {
		const { error } = JSON.parse(body);
		if (typeof error === "string" && error) return error;
	} catch {
		// Not ours.
	}
	return body.slice(0, 500) || `${answer.status} ${answer.statusText}`;
}
