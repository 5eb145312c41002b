// The status and history of the server, once a second: from its event stream, else by polling.
//
// `EventSource` cannot send headers, so the stream is read with `fetch`. A hidden page sends nothing.

import { json, send } from "./api.js";

/** Milliseconds of history, as in the server. */
const KEPT = 15 * 60 * 1000;
/** Seconds per point of the history; those of the stream are of one. */
const STEP = 5;
/** Milliseconds without a point after which some were missed. */
const GAP = 3 * STEP * 1000;
const POLL = 2000;
/** Polls before the stream is tried again. */
const POLLS = 15;
const MAX_BACKOFF = 5000;
/** Milliseconds after which a silent stream counts as lost; it has an event every second. */
const SILENCE = 8000;

class Feed extends EventTarget {
	/** The newest status; null before the first. */
	status = null;
	/** The points of all models together, oldest first. */
	points = [];
	/** `connecting`, `live`, `polling`, `lost` or `locked`. */
	state = "connecting";
	/** The error, if it is lost or locked. */
	why = "";
	/** Whether the status is that of a server that has stopped responding. */
	isStale = false;
	/** When the newest status came, in milliseconds since 1970. */
	seenAt = null;
	#run = null;

	/** Starts again, as after a login. */
	start() {
		this.#run?.abort();
		this.#run = new AbortController();
		this.#be("connecting");
		this.#keep(this.#run.signal);
	}

	/** Fetches the status now, as after a change. */
	async refresh() {
		this.#take(await json("/api/v1/status"));
	}

	stop() {
		this.#run?.abort();
		this.#run = null;
	}

	get isRunning() {
		return this.#run !== null;
	}

	/** Runs while the page is visible. */
	async #keep(signal) {
		let wait = 500;
		while (!signal.aborted) {
			try {
				this.#take(await ask("/api/v1/status", signal));
				await this.#catchUp(signal);
				wait = 500;
				if (!(await this.#stream(signal))) await this.#poll(signal);
			} catch (error) {
				if (signal.aborted) return;
				if (error.status === 401 || error.status === 403) {
					this.#be("locked", error.message);
					return;
				}
				this.#be("lost", error.message);
			}
			await sleep(wait, signal);
			wait = Math.min(wait * 1.6, MAX_BACKOFF);
		}
	}

	/** Reads the stream until it ends, as it does every few minutes; false if it is not served. */
	async #stream(signal) {
		const silence = new AbortController();
		const either = AbortSignal.any([signal, silence.signal]);
		let alarm = setTimeout(() => silence.abort(), SILENCE);
		try {
			const answer = await send("/api/v1/stream", { signal: either, headers: { Accept: "text/event-stream" } });
			const type = answer.headers.get("Content-Type") ?? "";
			if (!answer.ok || !type.startsWith("text/event-stream") || !answer.body) {
				await answer.body?.cancel();
				return false;
			}
			const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
			let text = "";
			for (;;) {
				const { value, done } = await reader.read();
				if (done) break;
				clearTimeout(alarm);
				alarm = setTimeout(() => silence.abort(), SILENCE);
				const events = (text + value).replaceAll("\r\n", "\n").split("\n\n");
				text = events.pop();
				for (const event of events) this.#event(event);
			}
		} catch (error) {
			if (signal.aborted) throw error;
			if (silence.signal.aborted)
				throw new Error(`The server has sent nothing for ${SILENCE / 1000} s.`, { cause: error });
		} finally {
			clearTimeout(alarm);
		}
		return true;
	}

	#event(text) {
		let kind = "message";
		const data = [];
		for (const line of text.split("\n")) {
			if (line.startsWith("event:")) kind = line.slice(6).trim();
			if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
		}
		if (kind === "status") {
			this.#take(JSON.parse(data.join("\n")));
			this.#be("live");
		}
		if (kind === "point") this.#add([JSON.parse(data.join("\n"))]);
	}

	async #poll(signal) {
		for (let turn = 0; turn < POLLS; turn += 1) {
			this.#be("polling");
			await sleep(POLL, signal);
			this.#take(await ask("/api/v1/status", signal));
			await this.#catchUp(signal);
		}
	}

	async #catchUp(signal) {
		const last = this.points.at(-1)?.at ?? 0;
		if (this.state === "live" && this.status.server.now - last < GAP) return;
		const history = await ask(`/api/v1/history?step=${STEP}`, signal);
		this.points = [];
		this.#add(history.points);
	}

	#take(status) {
		const before = this.status;
		this.status = status;
		this.isStale = false;
		this.seenAt = Date.now();
		if (before && before.server.started_at !== status.server.started_at) {
			this.dispatchEvent(new Event("restart"));
		}
		this.dispatchEvent(new Event("status"));
	}

	/** Adds points; the newest one is repeated while it grows. */
	#add(points) {
		for (const point of points.filter(({ seconds }) => seconds > 0)) {
			const last = this.points.at(-1);
			if (last && last.at === point.at) this.points.pop();
			if (last && last.at > point.at) continue;
			this.points.push(point);
		}
		const newest = this.points.at(-1)?.at ?? 0;
		while (this.points.length && this.points[0].at < newest - KEPT) this.points.shift();
		this.dispatchEvent(new Event("points"));
	}

	#be(state, why = "") {
		if (this.state === state && this.why === why) return;
		this.state = state;
		this.why = why;
		if (state === "lost" && this.status) this.isStale = true;
		this.dispatchEvent(new Event("state"));
	}
}

export const feed = new Feed();

/** A response, which must come within the time that a silent stream has: a server may be there and not respond. */
function ask(path, signal) {
	return json(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(SILENCE)]) });
}

/** Waits, until the signal at the latest. */
function sleep(time, signal) {
	return new Promise(resolve => {
		const done = () => {
			clearTimeout(timer);
			signal.removeEventListener("abort", done);
			resolve();
		};
		const timer = setTimeout(done, time);
		signal.addEventListener("abort", done);
	});
}
