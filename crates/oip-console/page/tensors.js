// Tensors between text, files and JSON requests.

const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);

export const isFloat = (datatype) => FLOATS.has(datatype);

export const elements = (shape) => shape.reduce((product, dim) => product * dim, 1);

/** A shape that a request may have: free dimensions are 1, except the last ones of an image or a sequence. */
export function exampleShape(pattern) {
  const isImage = pattern.length === 4 && (pattern[1] === 3 || pattern[3] === 3 || pattern[1] === 1 || pattern[3] === 1);
  return pattern.map((dim, i) => (dim >= 0 ? dim : i > 0 && isImage ? 224 : i > 0 && i === pattern.length - 1 ? 8 : 1));
}

/** Values that most models take: small, and the same each time. */
export function exampleData(datatype, shape) {
  const count = elements(shape);
  const of = {
    BOOL: (i) => i % 2 === 1,
    BYTES: (i) => ["hello", "world"][i % 2],
  }[datatype] ?? (isFloat(datatype) ? (i) => (i % 10) / 10 : (i) => (count === 1 ? 1 : i % 2));
  return Array.from({ length: count }, (_, i) => of(i));
}

/** `[[1, 2], [3, 4]]`: data as rows of its last dimension, so that a person can read it. */
export function printData(data, shape) {
  const row = shape.at(-1) || 1;
  if (shape.length < 2 || data.length <= row) return JSON.stringify(data);
  const lines = [];
  for (let i = 0; i < data.length; i += row) lines.push(JSON.stringify(data.slice(i, i + row)));
  return `[${lines.join(",\n ")}]`;
}

/** Reads JSON, nested or flat, or else CSV; says what is wrong with an Error. */
export function readData(text, datatype) {
  const trimmed = text.trim();
  if (trimmed.startsWith("[") || trimmed.startsWith("\"")) {
    try {
      return [JSON.parse(trimmed)].flat(Infinity);
    } catch (error) {
      throw new Error(`The data is not valid JSON: ${error.message}`);
    }
  }
  if (!trimmed) return [];
  if (datatype === "BYTES") return trimmed.split(/\r?\n/);
  const isHeader = (line) => line.split(/[,;\t]/).every((cell) => cell.trim() && Number.isNaN(Number(cell)) && !/^(true|false|nan|-?inf(inity)?)$/i.test(cell.trim()));
  const lines = trimmed.split(/\r?\n/);
  return (lines.length > 1 && isHeader(lines[0]) ? lines.slice(1) : lines)
    .flatMap((line) => line.split(/[,;\s]+/).filter(Boolean))
    .map((cell) => {
      if (datatype === "BOOL") return /^(true|1)$/i.test(cell);
      if (/^-?inf(inity)?$/i.test(cell)) return cell.startsWith("-") ? "-Infinity" : "Infinity";
      if (/^nan$/i.test(cell)) return "NaN";
      const value = Number(cell);
      if (Number.isNaN(value)) throw new Error(`'${cell}' is not a number.`);
      return value;
    });
}

/** The shape for so many elements: what is free in the pattern follows from their number where one dimension is free. */
export function fitShape(pattern, shape, count) {
  if (elements(shape) === count) return shape;
  const free = pattern.map((dim, i) => (dim < 0 ? i : -1)).filter((i) => i >= 0);
  for (const i of free) {
    const others = elements(shape.filter((_, k) => k !== i));
    if (others > 0 && count % others === 0) return shape.map((dim, k) => (k === i ? count / others : dim));
  }
  return shape;
}

/** How a pattern has an image: where its channels, rows and columns are. */
export function imageLayout(pattern) {
  if (pattern.length < 2 || pattern.length > 4) return null;
  // Two dimensions, the first of them free, are a batch of vectors.
  if (pattern.length === 2 && pattern.some((dim) => dim < 8)) return null;
  const dims = pattern.length === 4 ? pattern.slice(1) : pattern;
  const lead = pattern.length === 4;
  if (dims.length === 2) return { lead, order: "HW", channels: 1, height: dims[0], width: dims[1] };
  for (const [order, channels, height, width] of [["CHW", dims[0], dims[1], dims[2]], ["HWC", dims[2], dims[0], dims[1]]]) {
    if ([1, 3, 4].includes(channels)) return { lead, order, channels, height, width };
  }
  return null;
}

export const PIXELS = {
  "0 to 1": (value) => value / 255,
  "0 to 255": (value) => value,
  "-1 to 1": (value) => value / 127.5 - 1,
  "ImageNet mean and deviation": (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

/** Reads an image file into the layout; its size is the layout's where that is fixed. */
export async function readImage(file, layout, pixels) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} is not an image that this browser can read.`);
  });
  const width = layout.width > 0 ? layout.width : bitmap.width;
  const height = layout.height > 0 ? layout.height : bitmap.height;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, width, height);
  const rgba = context.getImageData(0, 0, width, height).data;
  const data = new Array(layout.channels * width * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = 4 * (y * width + x);
      for (let c = 0; c < layout.channels; c++) {
        const value = layout.channels === 1 ? 0.299 * rgba[at] + 0.587 * rgba[at + 1] + 0.114 * rgba[at + 2] : rgba[at + c];
        const place = layout.order === "HWC" ? (y * width + x) * layout.channels + c : (c * height + y) * width + x;
        data[place] = Number(PIXELS[pixels](value, c).toPrecision(7));
      }
    }
  }
  const dims = { HW: [height, width], CHW: [layout.channels, height, width], HWC: [height, width, layout.channels] }[layout.order];
  return { data, shape: layout.lead ? [1, ...dims] : dims };
}

/** Reads an audio file as one channel of samples from -1 to 1. */
export async function readAudio(file, rate) {
  const context = new OfflineAudioContext(1, 1, rate);
  const audio = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new Error(`${file.name} is not a sound that this browser can read.`);
  });
  const mixed = new Array(audio.length).fill(0);
  for (let channel = 0; channel < audio.numberOfChannels; channel++) {
    audio.getChannelData(channel).forEach((sample, i) => { mixed[i] += sample / audio.numberOfChannels; });
  }
  return mixed.map((sample) => Number(sample.toPrecision(6)));
}

/** Draws a tensor as a picture, or returns null if it has no form of one. */
export function picture(output) {
  const shape = output.shape.length === 4 && output.shape[0] === 1 ? output.shape.slice(1) : output.shape;
  const layout = output.datatype !== "BYTES" && output.datatype !== "BOOL" && imageLayout(shape);
  if (!layout || layout.lead || layout.height < 8 || layout.width < 8 || output.data.length > 4e6) return null;
  const { order, channels, height, width } = layout;
  const values = output.data.filter(Number.isFinite);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.className = "picture";
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const at = (y, x, c) => output.data[order === "HWC" ? (y * width + x) * channels + c : (c * height + y) * width + x];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      for (let c = 0; c < 3; c++) {
        image.data[4 * (y * width + x) + c] = (255 * (at(y, x, channels === 1 ? 0 : c) - least)) / (most - least || 1);
      }
      image.data[4 * (y * width + x) + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${output.name} as a picture, ${width} by ${height}, from ${least} (black) to ${most} (white)`);
  return canvas;
}
