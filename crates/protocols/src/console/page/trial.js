// What the trial of a version has shown: its answers to recorded requests, beside those of the version before.

import { el, icon } from "./dom.js";
import { count, millis, NONE } from "./format.js";

/** What is against a version that is held. */
export function objections({ error, trial }) {
	const reasons = trial?.against.length ? trial.against : [error];
	return el("div.notice.bad", icon("alert"), el("div", el("strong", "What is against it"), items(reasons)));
}

/** The report of a trial of a version that serves, folded; null if it had none. */
export function folded({ version, trial }) {
	if (!trial) return null;
	const title = trial.accepted
		? `Passed its trial with ${count(trial.requests, "recorded request")}`
		: "Was held, and released by an admin";
	return el(
		"details.trial",
		{ "data-of": version },
		el("summary", title),
		section("What was against it", trial.against),
		report({ version, trial }),
	);
}

/** The figures of a trial, as elements. */
export function report({ version, trial }) {
	const widened = Object.entries(trial.widened_tolerances).map(
		([name, most]) => `${name} differs between two runs of the old version: ${most.toExponential(2)} is allowed`,
	);
	const { lost, added } = trial.signatures;
	return [
		facts(trial),
		section("First requests that fail only on the new version", trial.failed),
		outputs(version, Object.entries(trial.outputs)),
		section("Widened tolerances", widened),
		section("Changes of signatures", [...lost, ...added]),
		section("Notes", trial.notes),
	];
}

function facts(trial) {
	const [old, now] = trial.median_ms;
	const { requests, slowdown } = trial;
	const failures = [
		["Fail on the new version only", trial.failed_in_new],
		["Fail on the old version only", trial.failed_in_old],
		["Fail on both", trial.failed_in_both],
	].filter(([, many]) => many > 0);
	const times = [
		["Median run, old version", millis(old)],
		["Median run, new version", millis(now)],
		["New to old", slowdown === null ? "too few requests to tell" : `${slowdown.toFixed(2)} times as long`],
	];
	return el(
		"dl.facts",
		[["Answered by both", count(requests, "request")], ...failures, ...(requests ? times : [])].map(([name, value]) =>
			el("div", el("dt", name), el("dd", value)),
		),
	);
}

function outputs(version, all) {
	if (!all.length) return null;
	const heads = ["Requests", "Equal bits", "Largest difference", "Same top", "PSI", "KS"];
	const row = ([name, output]) =>
		el(
			"tr",
			el("th.code", { scope: "row" }, name),
			[
				output.requests,
				output.equal,
				largest(output),
				output.same_top === null ? NONE : `${(100 * output.same_top).toFixed(2)} %`,
				output.psi?.toFixed(4) ?? NONE,
				output.ks?.toFixed(4) ?? NONE,
			].map(value => el("td", value)),
		);
	return el(
		"div.scroll",
		{ tabindex: 0, role: "region", "aria-label": `Outputs in the trial of version ${version}` },
		el(
			"table.compared",
			el(
				"thead",
				el(
					"tr",
					["Output", ...heads].map(head => el("th", { scope: "col" }, head)),
				),
			),
			el("tbody", all.map(row)),
		),
	);
}

/** The largest difference of an output; of texts and infinite values there is no size. */
function largest({ largest_difference: most, largest_difference_in: request }) {
	if (most === 0) return "0";
	return el("span", most === null ? "other values" : most.toExponential(2), el("span.faint", ` in request ${request}`));
}

function section(title, lines) {
	return lines.length ? el("div", el("h4", title), items(lines)) : null;
}

function items(lines) {
	return el(
		"ul.bullets",
		lines.map(line => el("li", line)),
	);
}
