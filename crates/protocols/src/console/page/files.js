// Files that users drop: images, CSV and arrays, checked before use.

/** The limit of this page; the server has its own. */
const MOST_BYTES = 32 * 1024 * 1024;
/** A file of a few bytes can declare billions of pixels. */
const MOST_PIXELS = 50_000_000;

/** The kind of a file: `image`, `csv`, `npy` or `other`. */
export function kindOf(file) {
	const name = file.name.toLowerCase();
	if (name.endsWith(".npy")) return "npy";
	if (name.endsWith(".csv") || file.type === "text/csv") return "csv";
	return file.type.startsWith("image/") ? "image" : "other";
}

/** Throws if a file is too large to read. */
export function checkSize(file) {
	if (file.size > MOST_BYTES) {
		throw new Error(`${file.name} has ${(file.size / 1024 / 1024).toFixed(0)} MiB; this page reads at most 32 MiB.`);
	}
}

/** The image in a file, not decoded yet; throws if it is invalid or too large. */
export async function picture(file) {
	checkSize(file);
	const image = new Image();
	image.src = URL.createObjectURL(file);
	try {
		await new Promise((resolve, reject) => {
			image.addEventListener("load", resolve);
			image.addEventListener("error", () => {
				reject(new Error(`${file.name} is not an image that this browser can decode.`));
			});
		});
		if (image.naturalWidth * image.naturalHeight > MOST_PIXELS) {
			throw new Error(
				`${file.name} has ${image.naturalWidth} × ${image.naturalHeight} pixels; this page sends at most 50 million.`,
			);
		}
		return image;
	} catch (error) {
		URL.revokeObjectURL(image.src);
		throw error;
	}
}

/** A file's bytes in standard base64. */
export function base64(file) {
	return new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
		reader.addEventListener("error", () => {
			reject(new Error(`${file.name} cannot be read: ${reader.error.message}`));
		});
		reader.readAsDataURL(file);
	});
}

/** The ranges that pixels of 0 to 255 are scaled to. */
export const SCALES = [
	["unit", "0 to 1"],
	["signed", "−1 to 1"],
	["byte", "0 to 255"],
];

const SCALE = {
	unit: value => Number((value / 255).toFixed(6)),
	signed: value => Number((value / 127.5 - 1).toFixed(6)),
	byte: value => Math.round(value),
};

/** The image that an input of this shape accepts: height, width, channels, nesting; null for none. */
export function pictureShape(sizes) {
	if (!sizes) return null;
	const at = (height, width, channels, form) =>
		height === 0 || width === 0 ? null : { height, width, channels, form };
	if (sizes.length === 4 && [1, 3, 4].includes(sizes[3])) return at(sizes[1], sizes[2], sizes[3], "pixels");
	if (sizes.length === 3 && sizes[1] >= 8 && sizes[2] >= 8) return at(sizes[1], sizes[2], 1, "rows");
	const side = sizes.length === 2 ? Math.sqrt(sizes[1]) : 0;
	return Number.isInteger(side) && side >= 8 ? at(side, side, 1, "flat") : null;
}

/** An image as numbers, resized and nested as the input declares. */
export function pixels(image, target, scale) {
	const width = target.width > 0 ? target.width : Math.min(image.naturalWidth, 512);
	const height = target.height > 0 ? target.height : Math.min(image.naturalHeight, 512);
	const canvas = new OffscreenCanvas(width, height);
	const context = canvas.getContext("2d");
	context.imageSmoothingQuality = "high";
	context.drawImage(image, 0, 0, width, height);
	const { data } = context.getImageData(0, 0, width, height);
	const channels = i => {
		const [red, green, blue, alpha] = data.subarray(i, i + 4);
		if (target.channels === 1) return [0.299 * red + 0.587 * green + 0.114 * blue];
		return [red, green, blue, alpha].slice(0, target.channels);
	};
	const row = y => Array.from({ length: width }, (_, x) => channels(4 * (y * width + x)).map(SCALE[scale]));
	const rows = Array.from({ length: height }, (_, y) => row(y));
	if (target.form === "pixels") return rows;
	const grey = rows.map(one => one.flat());
	return target.form === "rows" ? grey : grey.flat();
}
