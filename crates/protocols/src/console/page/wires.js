// The HTTP request of a call, in each protocol.

import { segment } from "./api.js";

const JSON_TYPE = { "Content-Type": "application/json" };

/** The protocols, in the order of the menu. */
export const WIRES = [
	["tfs", "TensorFlow Serving"],
	["simple", "Simple"],
	["sagemaker", "SageMaker"],
	["v2", "Open Inference"],
	["mlflow", "MLflow"],
];

/** The protocols that take NumPy files. */
export const TAKES_ARRAYS = new Set(["tfs", "sagemaker"]);

/** The Open Inference Protocol's names of types; it sends small floats as FP32. */
const DATATYPES = {
	bool: "BOOL",
	string: "BYTES",
	float16: "FP32",
	bfloat16: "FP32",
	float32: "FP32",
	float64: "FP64",
};

/**
 * The request for `call`: `{model, version, label, signature, columns, inputs: [{name, dtype, json, rows}], files}`.
 * `rows` has the JSON of each value of an input of rows, and `columns` the names that MLflow's signature has.
 * `text` is a complete body in place of the inputs; `array` is a NumPy file.
 */
export function request(wire, call) {
	return { tfs: tensorflowServing, simple, sagemaker, v2: openInference, mlflow }[wire](call);
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

/** The header that names the model for `/invocations`. */
function attributesOf(call) {
	const attributes = [`tfs-model-name=${call.model}`];
	if (call.version) attributes.push(`tfs-model-version=${call.version}`);
	return { "X-Amzn-SageMaker-Custom-Attributes": attributes.join(",") };
}

function sagemaker(call) {
	const own = attributesOf(call);
	const path = "/invocations";
	if (call.array)
		return {
			path,
			headers: { "Content-Type": "application/x-npy", Accept: "application/json", ...own },
			body: call.array,
		};
	return { path, headers: { ...JSON_TYPE, ...own }, body: columns(call) };
}

function mlflow(call) {
	return {
		path: "/invocations",
		headers: { ...JSON_TYPE, ...attributesOf(call) },
		body: call.text ?? dataFrame(call) ?? arrays(call),
	};
}

/** A table with the columns that the model declares; null if the inputs are none. */
function dataFrame({ columns: names, inputs }) {
	if (!names.length || inputs.some(({ rows }) => !rows?.length)) return null;
	const byName = new Map(inputs.map(({ name, rows }) => [name, rows]));
	const isNamed = names.every(name => byName.get(name)?.[0].length === 1);
	// Or else the columns of a matrix, in their order.
	const parts = isNamed ? names.map(name => byName.get(name)) : inputs.map(({ rows }) => rows);
	const data = parts[0].map((_, i) => parts.flatMap(rows => rows[i] ?? []));
	if (data.some(row => row.length !== names.length)) return null;
	const lines = data.map(row => `      [${row.join(", ")}]`);
	const members = [
		["columns", `[${names.map(name => JSON.stringify(name)).join(", ")}]`],
		["data", `[\n${lines.join(",\n")}\n    ]`],
	];
	return object([["dataframe_split", object(members, "    ")]]);
}

/** The tensors of a model without columns: one alone, several by their names. */
function arrays({ inputs }) {
	const [only, ...more] = inputs;
	const named = () =>
		object(
			inputs.map(({ name, json }) => [name, json]),
			"    ",
		);
	return object([["inputs", more.length ? named() : only.json]]);
}

function openInference(call) {
	const of = call.version ? `/versions/${segment(String(call.version))}` : "";
	const path = `/v2/models/${segment(call.model)}${of}/infer`;
	if (call.text !== undefined) return { path, headers: JSON_TYPE, body: call.text };
	const input = ({ name, dtype, json }) =>
		object(
			[
				["name", JSON.stringify(name)],
				["shape", JSON.stringify(shapeOf(json))],
				["datatype", JSON.stringify(DATATYPES[dtype] ?? dtype.toUpperCase())],
				["data", json.startsWith("[") ? json : `[${json}]`],
			],
			"      ",
		);
	const inputs = `[\n    ${call.inputs.map(input).join(",\n    ")}\n  ]`;
	const isDefault = call.signature === "serving_default";
	const parameters = `{"signature_name": ${JSON.stringify(call.signature)}}`;
	return {
		path,
		headers: JSON_TYPE,
		body: object([...(isDefault ? [] : [["parameters", parameters]]), ["inputs", inputs]]),
	};
}

/** The sizes of nested lists, as their first elements have them. */
function shapeOf(json) {
	const sizes = [];
	// NaN and infinity are no JSON, and the texts of numbers do not matter here.
	let value = JSON.parse(json.replace(/(?<![\w"])-?(NaN|Infinity)(?![\w"])/g, "0"));
	while (Array.isArray(value)) {
		sizes.push(value.length);
		[value] = value;
	}
	return sizes;
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
	return { body, fields, files: call.files, part, shown: `multipart/form-data\n\n${shown.join("\n")}` };
}

/** Longer bodies do not fit into an argument of a command. */
const MOST_ARGUMENT = 60_000;

/** A command that sends the request from a shell. Credentials are left to the user. */
export function asCurl({ path, headers, body, fields, files, part }, base, authorization) {
	const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
	const words = [`curl ${quoted(new URL(path.slice(1), base).href)}`];
	if (authorization?.startsWith("Basic ")) words.push("--user USER");
	else if (authorization) words.push('--header "Authorization: Bearer $API_KEY"');
	for (const [name, value] of Object.entries(headers)) words.push(`--header ${quoted(`${name}: ${value}`)}`);
	for (const file of files ?? []) words.push(`--form ${quoted(`${part}=@"${file.name}"`)}`);
	for (const [name, value] of fields ?? []) words.push(`--form-string ${quoted(`${name}=${value}`)}`);
	if (body instanceof Blob) words.push(`--data-binary ${quoted(`@${body.name}`)}`);
	const isText = typeof body === "string";
	if (isText && body.length <= MOST_ARGUMENT) words.push(`--data ${quoted(body)}`);
	if (isText && body.length > MOST_ARGUMENT) words.push(`--data-binary @- <<'END_OF_BODY'\n${body}\nEND_OF_BODY`);
	return words.join(" \\\n  ");
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
