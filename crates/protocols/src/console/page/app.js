// The page: panels, login, connection state, light and dark mode.

import * as address from "./address.js";
import * as admin from "./admin.js";
import { session, send, url } from "./api.js";
import * as clients from "./clients.js";
import { toast } from "./dialogs.js";
import { arrowKeys, button, byId, el, icon, replace, setText } from "./dom.js";
import { feed } from "./feed.js";
import { clock } from "./format.js";
import * as models from "./models.js";
import * as order from "./order.js";
import * as overview from "./overview.js";
import * as traffic from "./traffic.js";
import * as tryit from "./tryit.js";

/** Name, title and icon of each. */
const TABS = [
	["overview", "Overview", "gauge"],
	["charts", "Charts", "chart"],
	["try", "Try it", "play"],
	["clients", "Clients", "code"],
	["admin", "Admin", "shield"],
	["api", "API", "book"],
];
const PANELS = TABS.map(([name]) => name);

let panel = null;

/** The panels that show one model, which stays the same from one to the next. */
const OF_A_MODEL = new Set(["charts", "try", "clients"]);
/** What was shown in each panel when it was left. */
const left = new Map();

/** The panel, model and options of the address: `#try/digits?signature=serving_default`. */
function place() {
	const { panel: name, model, options } = address.read();
	return { name: PANELS.includes(name) ? name : "overview", model, options };
}

function go(name, model, options) {
	location.hash = address.format(name, model, options);
}

/** Opens a panel with the model of this one, or else as it was left. */
function open(name) {
	const now = place();
	if (name === now.name) return;
	left.set(now.name, now);
	const { model = null, options = {} } = left.get(name) ?? {};
	if (!OF_A_MODEL.has(name) || now.model === null) go(name, model, options);
	else if (now.model !== model) go(name, now.model, { signature: now.options.signature });
	else go(name, model, { ...options, signature: now.options.signature ?? options.signature });
}

/** Shows the panel that the address names. */
function show() {
	if (!feed.status) return;
	const { name: named, model, options } = place();
	const name = named === "admin" && !admin.isAdmin() ? "overview" : named;
	const isNew = panel !== name;
	panel = name;
	for (const one of PANELS) {
		const [tab, body] = [byId(`tab-${one}`), byId(`panel-${one}`)];
		tab.setAttribute("aria-selected", String(one === name));
		tab.tabIndex = one === name ? 0 : -1;
		body.hidden = one !== name;
	}
	if (isNew) scrollTo(0, 0);
	traffic.show(name === "charts", model, options);
	admin.show(name === "admin");
	if (name === "overview") order.open(options);
	if (name === "overview") models.refresh();
	if (name === "try") tryit.show(model, options);
	if (name === "clients") clients.show(model, options);
}

function tabs() {
	const tab = ([name, title, picture]) => {
		const properties = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}` };
		return el("button", { ...properties, onclick: () => open(name) }, icon(picture), el("span", title));
	};
	replace(byId("tabs"), TABS.map(tab));
	const shown = () => [...byId("tabs").children].filter(one => !one.hidden);
	arrowKeys(byId("tabs"), shown, one => one.click());
	addEventListener("hashchange", show);
}

/** The server responds, for the first time or again. */
function connected() {
	byId("loading").hidden = true;
	document.body.classList.toggle("is-stale", feed.isStale);
	byId("login").hidden = true;
	byId("main").hidden = false;
	byId("tabs").hidden = false;
	byId("facts-bar").hidden = false;
	const { user, auth } = feed.status.server;
	byId("logout").hidden = !session.isLoggedIn || !auth;
	byId("logout").title = user ? `Log out ${user}` : "Log out";
	setText(byId("user"), auth && user ? user : "");
	const isAdmin = admin.isAdmin();
	byId("tab-admin").hidden = !isAdmin;
	if (panel === null || (panel === "admin" && !isAdmin)) show();
}

function locked() {
	byId("loading").hidden = true;
	for (const id of ["main", "tabs", "facts-bar", "banner"]) byId(id).hidden = true;
	byId("login").hidden = false;
	setText(byId("login-error"), session.isLoggedIn ? feed.why : "");
	(byId("login-user").value ? byId("login-password") : byId("login-user")).focus();
	panel = null;
}

/** Shows the state of the connection: a dot, and a banner while it is lost. */
function connection() {
	const { state, why } = feed;
	if (state === "locked") return locked();
	const dot = byId("connection");
	dot.dataset.state = state;
	const words = { live: "Live", polling: "Polling", lost: "Disconnected", connecting: "Connecting" }[state];
	dot.title = words;
	setText(byId("connection-text"), words);
	document.body.classList.toggle("is-stale", feed.isStale);
	const banner = byId("banner");
	const was = !banner.hidden;
	banner.hidden = state !== "lost";
	if (state === "lost")
		setText(
			byId("banner-text"),
			feed.status
				? `Connection to the server lost since ${clock(feed.seenAt)}. What is shown is from then. Retrying… ${why}`
				: `The server does not respond yet. Retrying… ${why}`,
		);
	if (was && state !== "lost" && feed.status) toast("Reconnected to the server.");
}

function login() {
	byId("login-form").addEventListener("submit", event => {
		event.preventDefault();
		const { user, password, key } = event.target.elements;
		if (key.value.trim()) session.useKey(key.value.trim());
		else session.usePassword(user.value, password.value);
		password.value = "";
		key.value = "";
		feed.start();
	});
	byId("logout").addEventListener("click", () => {
		session.forget();
		// Removes everything that the user has seen.
		location.reload();
	});
}

function theme() {
	const root = document.documentElement;
	const isDark = () =>
		root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
	const update = () => {
		byId("theme").setAttribute("aria-pressed", String(isDark()));
		byId("theme").title = `Switch to ${isDark() ? "light" : "dark"} mode`;
	};
	byId("theme").addEventListener("click", () => {
		root.dataset.theme = isDark() ? "light" : "dark";
		try {
			localStorage.setItem("tensorserve.theme", root.dataset.theme);
		} catch {
			// Storage is disabled: the choice lasts until the page is closed.
		}
		update();
	});
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
	update();
}

/** Fetches what links point to: a browser that follows a link sends no credentials. */
function links() {
	for (const link of document.querySelectorAll("a[data-path]")) {
		link.href = url(link.dataset.path);
		link.addEventListener("click", async event => {
			if (!session.isLoggedIn) return;
			event.preventDefault();
			try {
				const answer = await send(link.dataset.path, { headers: { Accept: link.type } });
				const body = await answer.blob();
				if (!answer.ok) throw new Error(`${link.dataset.path}: ${answer.status} ${answer.statusText}`);
				const saved = document.createElement("a");
				saved.href = URL.createObjectURL(body);
				saved.download = link.dataset.file;
				saved.click();
				setTimeout(() => URL.revokeObjectURL(saved.href), 10_000);
			} catch (error) {
				toast(error.message, "bad");
			}
		});
	}
}

function modelActions(model) {
	const ready = model.versions.some(version => version.state === "AVAILABLE");
	const uses = ready
		? [
				button("Try it", { icon: "play", class: "button primary", onclick: () => go("try", model.name) }),
				button("Client code", { icon: "code", onclick: () => go("clients", model.name) }),
			]
		: [];
	return [...uses, ...admin.actions(model)];
}

theme();
tabs();
login();
links();
overview.start();
models.start(modelActions, admin.versionActions);
traffic.start();
tryit.start();
clients.start();
admin.start();
feed.addEventListener("status", connected);
feed.addEventListener("state", connection);
document.addEventListener("visibilitychange", () => {
	if (feed.state === "locked") return;
	if (document.hidden) feed.stop();
	else feed.start();
});
feed.start();
