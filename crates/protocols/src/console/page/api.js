// Requests to the server, with the user's credentials.

const KEPT_AS = "tensorserve.authorization";

/** In every request: the server then sends no `WWW-Authenticate`, so that this page asks. */
const FROM_PAGE = { "X-Requested-With": "tensorserve" };

/** A failed request; `status` is 0 if there was no response. */
class Failure extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

/** Credentials, kept while the tab is open and sent in the header only. */
class Session {
	#authorization = null;

	constructor() {
		try {
			this.#authorization = sessionStorage.getItem(KEPT_AS);
		} catch {
			// Storage is disabled: they last until the page is closed.
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
		return this.#authorization ? { ...FROM_PAGE, Authorization: this.#authorization } : FROM_PAGE;
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

/** The URL of a path of the server, also behind a proxy that adds a prefix. */
export function url(path) {
	return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

/** A name as a segment of a path. */
export function segment(name) {
	return encodeURIComponent(name);
}

/** Sends a request; throws a `Failure` if there is no response. */
export async function send(path, init = {}) {
	const headers = { ...session.headers, ...init.headers };
	try {
		return await fetch(url(path), { cache: "no-store", ...init, headers });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Failure(`The server does not respond (${error.message}).`, 0);
	}
}

/** The text of a response; throws a `Failure` with the message of an error. */
export async function text(path, init = {}) {
	const answer = await send(path, init);
	const body = await answer.text();
	if (!answer.ok) throw new Failure(reason(body, answer), answer.status);
	return body;
}

/** The JSON of a response. */
export async function json(path, init = {}) {
	const body = await text(path, init);
	try {
		return JSON.parse(body);
	} catch {
		throw new Failure(`The response of ${path} is not valid JSON.`, 200);
	}
}

/** Sends a change. */
export function change(path, body = {}, method = "POST") {
	const headers = { "Content-Type": "application/json" };
	return json(path, { method, headers, body: JSON.stringify(body) });
}

function reason(body, answer) {
	try {
		const { error } = JSON.parse(body);
		if (typeof error === "string" && error) return error;
	} catch {
		// Not an error of this server.
	}
	return body.slice(0, 500) || `${answer.status} ${answer.statusText}`;
}
