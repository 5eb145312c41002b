// The HTTP request of a call, in each protocol.

import { segment } from "./api.js";

const JSON_TYPE = { "Content-Type": "application/json" };

/** The protocols, in the order of the menu. */
export const WIRES = [
	["tfs", "TensorFlow Serving"],
	["simple", "Simple"],
	["sagemaker", "SageMaker"],
];

/**
 * The request for `call`: `{model, version, label, signature, inputs: [{name, json}], files}`.
 * `text` is a complete body in place of the inputs; `array` is a NumPy file.
 */
export function request(wire, call) {
	return { tfs: tensorflowServing, simple, sagemaker }[wire](call);
}

function object(pairs, indent = "  ") {
	const lines = pairs.map(([name, json]) => `${indent}${JSON.stringify(name)}: ${json}`);
	return `{\n${lines.join(",\n")}\n${indent.slice(2)}}`;
}

function columns(call) {
	if (call.text !== undefined) return call.text;
	const inputs = object(
		call.inputs.map(({ name, json }) => [name, json]),
		"    ",
	);
	const isDefault = call.signature === "serving_default";
	const signature = isDefault ? [] : [["signature_name", JSON.stringify(call.signature)]];
	return object([...signature, ["inputs", inputs]]);
}

function tensorflowServing(call) {
	const of = call.label ? `/labels/${segment(call.label)}` : call.version ? `/versions/${call.version}` : "";
	const path = `/v1/models/${segment(call.model)}${of}:predict`;
	if (call.array)
		return { path, headers: { "Content-Type": "application/x-npy", Accept: "application/json" }, body: call.array };
	return { path, headers: JSON_TYPE, body: columns(call) };
}

function sagemaker(call) {
	const attributes = [`tfs-model-name=${call.model}`];
	if (call.version) attributes.push(`tfs-model-version=${call.version}`);
	const own = { "X-Amzn-SageMaker-Custom-Attributes": attributes.join(",") };
	const path = "/invocations";
	if (call.array)
		return {
			path,
			headers: { "Content-Type": "application/x-npy", Accept: "application/json", ...own },
			body: call.array,
		};
	return { path, headers: { ...JSON_TYPE, ...own }, body: columns(call) };
}

function simple(call) {
	if (call.text !== undefined) return { path: "/", headers: JSON_TYPE, body: call.text };
	const isDefault = call.signature === "serving_default";
	if (call.files?.length) return { path: "/", headers: {}, ...imageForm(call, isDefault) };
	const members = [["model_name", JSON.stringify(call.model)]];
	if (call.version) members.push(["model_version", String(call.version)]);
	if (!isDefault) members.push(["signature_name", JSON.stringify(call.signature)]);
	members.push([
		"data",
		object(
			call.inputs.map(({ name, json }) => [name, json]),
			"    ",
		),
	]);
	return { path: "/", headers: JSON_TYPE, body: object(members) };
}

/** A multipart form, as clients upload images, and its text to show. */
function imageForm(call, isDefault) {
	const fields = [["model_name", call.model]];
	if (call.version) fields.push(["model_version", String(call.version)]);
	if (!isDefault) fields.push(["signature_name", call.signature]);
	const body = new FormData();
	const shown = [];
	const part = call.files.length === 1 ? "image" : "images";
	for (const file of call.files) {
		body.append(part, file);
		shown.push(`${part}=@${file.name}   (${file.size} bytes, ${file.type || "no type"})`);
	}
	for (const [name, value] of fields) {
		body.append(name, value);
		shown.push(`${name}=${value}`);
	}
	return { body, shown: `multipart/form-data\n\n${shown.join("\n")}` };
}

/** The request as text. */
export function asText({ path, headers, body, shown }, always) {
	const lines = [`POST ${path} HTTP/1.1`];
	for (const [name, value] of Object.entries({ ...headers, ...always })) {
		lines.push(`${name}: ${name === "Authorization" ? `${value.split(" ")[0]} …` : value}`);
	}
	if (shown) return `${lines.join("\n")}\nContent-Type: ${shown}`;
	const text = body instanceof Blob ? `(NumPy file of ${body.size} bytes)` : body;
	return `${lines.join("\n")}\n\n${text}`;
}
