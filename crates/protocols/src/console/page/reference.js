// Shows /openapi.json: each route with its roles, request and response.

import { send } from "./api.js";
import { el } from "./dom.js";

const METHODS = ["get", "head", "post", "put", "delete", "options"];

function block(title, value) {
	if (value === undefined) return null;
	return el("details", el("summary", title), el("pre.code-box", { tabindex: "0" }, JSON.stringify(value, null, 2)));
}

function operation(path, method, route) {
	const request = route.requestBody?.content?.["application/json"];
	const response = route.responses?.["200"]?.content?.["application/json"];
	const roles = route["x-roles"] ? el("span.faint", ` ${route["x-roles"].join(", ")}`) : null;
	return el(
		"section.card.route",
		el("h3", el("span.code", `${method.toUpperCase()} ${path}`), roles),
		el("p", route.summary ?? ""),
		block("Example request", request?.example),
		block("Request schema", request?.schema === true ? undefined : request?.schema),
		block("Response schema", response?.schema),
	);
}

async function show() {
	const note = document.getElementById("note");
	try {
		const answer = await send("/openapi.json");
		if (answer.status === 401) throw new Error("Log in on the dashboard first.");
		if (!answer.ok) throw new Error(`The server responded with status ${answer.status}.`);
		const { paths } = await answer.json();
		const groups = new Map();
		for (const [path, item] of Object.entries(paths)) {
			for (const method of METHODS.filter(one => item[one])) {
				const group = item[method].tags?.[0] ?? "server";
				if (!groups.has(group)) groups.set(group, []);
				groups.get(group).push(operation(path, method, item[method]));
			}
		}
		const shown = [...groups].map(([group, all]) => el("section", el("h2", group), ...all));
		document.getElementById("routes").replaceChildren(...shown);
	} catch (error) {
		note.textContent = error.message;
	}
}

show();
