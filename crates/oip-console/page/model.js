// The page of one model: what it is, how it does, and a form to try it.

import { badge, bytes, h, seconds, table, tabs } from "./dom.js";
import { bars, pipeline } from "./draw.js";
import { CallError, access, call, modelPath } from "./server.js";
import { snippets } from "./snippets.js";
import { PIXELS, elements, exampleData, exampleShape, fitShape, imageLayout, isFloat, picture, printData, readAudio, readData, readImage } from "./tensors.js";
import { isTexts, textFields } from "./texts.js";

const pattern = (shape) => `[${shape.join(", ")}]`;

function notice(error) {
  const status = error instanceof CallError && error.status ? ` (HTTP ${error.status})` : "";
  return h("p", { class: "notice bad", role: "alert" }, `${error.message}${status}`);
}

/**
 * Fields for one input; `read` gives it as the request has it. The configuration says which inputs are optional; the model's own
 * example, if it brings one, has data and leaves out inputs.
 */
function inputFields(input, i, config, example) {
  // Rows of a tensor file are recognised without the configuration too, which not every caller may read.
  const isRows = input.shape.length > 0 && /\.rows$/.test(input.name);
  const optional = config?.input?.find((one) => one.name === input.name)?.optional ?? isRows;
  const given = example?.inputs?.find((one) => one.name === input.name);
  const own = given && { shape: given.shape, data: [given.data].flat(Infinity) };
  const shape = own?.shape ?? exampleShape(input.shape);
  const shapeField = h("input", { id: `shape-${i}`, size: 18, value: shape.join(", "), spellcheck: "false", autocomplete: "off" });
  const data = h("textarea", { id: `data-${i}`, spellcheck: "false", "aria-label": `data of ${input.name}, JSON or CSV` });
  const used = h("input", { type: "checkbox", id: `used-${i}`, checked: example ? given != null : !isRows || i === 0 });
  const note = h("p", { class: "quiet", role: "status" });
  const layout = imageLayout(input.shape);
  const pixels = h("select", { "aria-label": "range of pixels" }, Object.keys(PIXELS).map((name) => h("option", {}, name)));
  const rate = h("input", { type: "number", value: 16000, min: 3000, max: 384000, "aria-label": "samples per second" });
  // What is too long to show is kept beside the field.
  let large = null;

  function show(values, dims) {
    shapeField.value = dims.join(", ");
    large = values.length > 20_000 ? values : null;
    data.value = large ? "" : printData(values, dims);
    data.placeholder = large ? `${values.length.toLocaleString("en")} values, not shown` : "";
  }

  async function load(file) {
    note.className = "quiet";
    try {
      if (/^image\//.test(file.type)) {
        if (!layout) throw new Error("This input has no form of an image.");
        const image = await readImage(file, layout, isFloat(input.datatype) ? pixels.value : "0 to 255");
        const values = isFloat(input.datatype) ? image.data : image.data.map(Math.round);
        show(values, image.shape);
      } else if (/^audio\//.test(file.type)) {
        const samples = await readAudio(file, Number(rate.value));
        show(samples, fitShape(input.shape, exampleShape(input.shape), samples.length));
      } else {
        const text = await file.text();
        const parsed = /\.json$/i.test(file.name) ? JSON.parse(text) : null;
        const found = parsed?.inputs?.find((one) => one.name === input.name) ?? (parsed?.inputs?.length === 1 ? parsed.inputs[0] : null);
        if (found) show([found.data].flat(Infinity), found.shape);
        else {
          const values = parsed ? [parsed].flat(Infinity) : readData(text, input.datatype);
          show(values, fitShape(input.shape, exampleShape(input.shape), values.length));
        }
      }
      note.textContent = `${file.name}, ${bytes(file.size)}`;
    } catch (error) {
      note.className = "bad";
      note.textContent = error.message;
    }
  }

  const file = h("input", {
    type: "file",
    "aria-label": `file for ${input.name}`,
    accept: `.json,.csv,.txt${layout ? ",image/*" : ""}${isFloat(input.datatype) ? ",audio/*" : ""}`,
    onchange: () => file.files[0] && load(file.files[0]),
  });
  data.addEventListener("input", () => { large = null; });
  // Another range or rate is for the file that was chosen, too.
  for (const choice of [pixels, rate]) choice.addEventListener("change", () => file.files[0] && load(file.files[0]));
  // The model's own rows, again and again, where only their number differs.
  function fill(dims) {
    const isOfRows = own?.data.length && String(dims.slice(1)) === String(own.shape.slice(1));
    show(isOfRows ? Array.from({ length: elements(dims) }, (_, k) => own.data[k % own.data.length]) : exampleData(input.datatype, dims), dims);
  }
  fill(shape);
  const fields = h("fieldset", {},
    h("legend", {}, input.name, h("span", { class: "quiet" }, ` ${input.datatype}${pattern(input.shape)}`)),
    h("div", { class: "row" },
      optional && h("label", { for: `used-${i}` }, used, "send"),
      h("label", { for: `shape-${i}` }, "shape", shapeField),
      h("button", { type: "button", onclick: () => fill(readShape()) }, "Fill")),
    data,
    h("div", { class: "row" },
      h("label", {}, layout ? "image, JSON or CSV" : isFloat(input.datatype) ? "JSON, CSV or sound" : "JSON or CSV", file),
      layout && isFloat(input.datatype) && h("label", {}, "pixels", pixels),
      isFloat(input.datatype) && !layout && h("label", {}, "samples/s", rate)),
    note);

  function readShape() {
    const text = shapeField.value.replace(/[[\]\s]/g, "");
    const dims = text === "" ? [] : text.split(",").map(Number);
    if (!dims.every((dim) => Number.isSafeInteger(dim) && dim >= 0)) throw new Error(`The shape of '${input.name}' is a list of integers, such as 1, 64.`);
    return dims;
  }

  function read() {
    if (optional && !used.checked) return null;
    const values = large ?? readData(data.value, input.datatype);
    const dims = fitShape(input.shape, readShape(), values.length);
    if (elements(dims) !== values.length) {
      throw new Error(`The shape of '${input.name}' takes ${elements(dims)} values, the data has ${values.length}.`);
    }
    shapeField.value = dims.join(", ");
    return { name: input.name, datatype: input.datatype, shape: dims, data: values };
  }

  return { fields, read, optional, isGiven: given != null, use: () => { used.checked = true; } };
}

const cell = (value) => (value === null ? "NaN" : typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value));

/** An output as table, as bars, as a picture: whatever its shape allows. */
function showOutput(output) {
  const { data, shape } = output;
  const title = h("h3", {}, output.name, h("span", { class: "quiet" }, ` ${output.datatype}${pattern(shape)}`));
  const columns = shape.length > 1 ? shape.at(-1) : 1;
  const asTable = () => {
    const rows = [];
    for (let i = 0; i < data.length && rows.length < 100; i += columns || 1) {
      rows.push([String(rows.length), ...data.slice(i, i + Math.min(columns, 50)).map(cell)]);
    }
    const shown = table(["#row", ...Array.from({ length: Math.min(columns, 50) }, (_, i) => (columns === 1 ? "#value" : `#${i}`))], rows, { class: "scroll tall" });
    const all = Math.ceil(data.length / (columns || 1));
    return h("div", {}, shown, (all > 100 || columns > 50) && h("p", { class: "quiet" }, `The first ${Math.min(all, 100)} of ${all} rows${columns > 50 ? `, 50 of ${columns} columns` : ""}.`));
  };
  const views = [["Table", asTable]];
  const isNumeric = !["BYTES", "BOOL"].includes(output.datatype) && data.every((value) => typeof value === "number");
  if (isNumeric && data.length > 1 && data.length === columns * elements(shape.slice(0, -1)) && elements(shape.slice(0, -1)) === 1 && columns <= 20_000) {
    const highest = data.map((value, i) => [i, value]).sort((a, b) => b[1] - a[1]).slice(0, 12);
    views.unshift(["Bars", () => h("div", {}, bars(highest, `highest values of ${output.name}`), columns > 12 && h("p", { class: "quiet" }, `The 12 highest of ${columns}.`))]);
  }
  const image = isNumeric && picture(output);
  if (image) views.unshift(["Picture", () => image]);
  views.push(["JSON", () => h("pre", {}, JSON.stringify(output.data.length > 5000 ? { ...output, data: `${output.data.length} values` } : output, null, 1))]);
  return h("div", {}, title, data.length ? tabs(`views of ${output.name}`, views) : h("p", { class: "quiet" }, "no elements"));
}

/** Inputs that a form shows at once; a file of tensors has one for each tensor. */
const MOST_INPUTS = 8;

/** Tensors that a table lists in full height; longer tables scroll. */
const MOST_TENSORS = 16;

/** The form, its answer and the same call in other languages. */
function tryIt(model, version, metadata, config, example) {
  const all = metadata.inputs.map((input, i) => (isTexts(metadata, input) ? textFields(input, i) : inputFields(input, i, config, example)));
  const isLong = all.length > MOST_INPUTS;
  // Of many inputs the form has those that a request needs, or the example has; the others are added by name.
  let inputs = isLong ? all.filter((one, i) => i === 0 || !one.optional || one.isGiven) : all;
  const shown = h("div", {}, inputs.map((input) => input.fields));
  const names = h("select", { "aria-label": "input to add" }, all.map((one, i) => !inputs.includes(one) && h("option", { value: i }, metadata.inputs[i].name)));
  const more = isLong && inputs.length < all.length && h("div", { class: "row" },
    h("label", {}, `one of ${all.length - inputs.length} more inputs`, names),
    h("button", { type: "button", onclick: () => {
      const chosen = all[names.value];
      if (!chosen) return;
      chosen.use();
      inputs = [...inputs, chosen];
      shown.append(chosen.fields);
      names.selectedOptions[0].remove();
      more.hidden = names.options.length === 0;
    } }, "Add"));
  const result = h("div", { "aria-live": "polite" });
  const code = h("div");
  const run = h("button", { class: "main", type: "submit" }, "Run");

  const request = () => ({ inputs: inputs.map((input) => input.read()).filter(Boolean) });

  function showCode() {
    try {
      const texts = snippets(model, version, request(), access.token() !== "");
      code.replaceChildren(tabs("the same call elsewhere", texts.map(([name, text]) => [name, () => h("div", {},
        h("pre", { class: "call", tabindex: "0" }, text), h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(text) }, "Copy"))])));
    } catch {
      code.replaceChildren(h("p", { class: "quiet" }, "It is shown once the form can be read."));
    }
  }

  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      run.disabled = true;
      try {
        const body = JSON.stringify(request());
        const start = performance.now();
        const answer = await call(`${modelPath(model, version)}/infer`, body);
        const elapsed = (performance.now() - start) / 1000;
        result.replaceChildren(
          h("p", { class: "quiet" }, `version ${answer.model_version ?? "–"} answered in ${seconds(elapsed)}, seen from this browser; the request has ${bytes(body.length)}`),
          ...answer.outputs.map(showOutput));
      } catch (error) {
        result.replaceChildren(notice(error));
      }
      showCode();
      run.disabled = false;
    },
  }, shown, more || [], h("div", { class: "row" }, run));
  showCode();
  return h("section", {},
    h("h2", {}, "Try it"),
    metadata.inputs.length ? null : h("p", { class: "quiet" }, "This model has no inputs."),
    form, result,
    h("h2", {}, "The same call elsewhere"), code);
}

/** What the model takes and gives, its configuration, its pipeline. */
function describe(metadata, config) {
  const tensors = (list) => table(["name", "datatype", "shape"], list.map((one) => [h("code", {}, one.name), one.datatype, pattern(one.shape)]),
    list.length > MOST_TENSORS ? { class: "scroll tall", tabindex: "0" } : {});
  const facts = [
    ["platform", metadata.platform],
    config?.backend && ["backend", config.backend],
    config?.runtime && ["runtime", config.runtime],
    ["versions", (metadata.versions ?? []).join(", ") || "–"],
    config && ["batches", config.max_batch_size > 0 ? `up to ${config.max_batch_size} rows` : "no"],
    config?.parameters?.batched && ["batched", config.parameters.batched.string_value],
    config?.parameters?.execution_providers && ["runs on", config.parameters.execution_providers.string_value],
    config?.instance_group?.length && ["instances", config.instance_group.map((group) => `${group.count} × ${group.kind.replace("KIND_", "")}${group.gpus?.length ? ` ${group.gpus.join(", ")}` : ""}`).join(", ")],
    config?.response_cache?.enable && ["response cache", "on"],
  ].filter(Boolean);
  return h("section", {},
    h("h2", {}, "About"), table(["what", "value"], facts),
    config?.ensemble_scheduling?.step?.length && [h("h2", {}, "Pipeline"), h("div", { class: "scroll" }, pipeline(config))],
    h("h2", {}, "Inputs"), tensors(metadata.inputs), h("h2", {}, "Outputs"), tensors(metadata.outputs),
    config && h("details", {}, h("summary", {}, "Configuration"), h("pre", {}, JSON.stringify(config, null, 2))));
}

/** Buttons that load and unload, where the server lets this client do so; else they are off, with the server's reason. */
function control(model) {
  const said = h("span", { role: "status", class: "quiet" });
  const act = (verb) => async (event) => {
    event.target.disabled = true;
    said.className = "quiet";
    said.textContent = "…";
    try {
      await call(`/v2/repository/models/${encodeURIComponent(model)}/${verb}`, "{}");
      said.textContent = verb === "load" ? "loaded" : "unloaded";
    } catch (error) {
      said.className = "bad";
      said.textContent = error.message;
    }
    event.target.disabled = false;
  };
  const buttons = [["Load", "load"], ["Unload", "unload"]].map(([name, verb]) =>
    h("button", { type: "button", disabled: true, onclick: act(verb) }, name));
  const allow = () => buttons.forEach((button) => { button.disabled = false; });
  // The same path tells by GET whether POST would be refused. Other servers of the protocol do not have it.
  call(`/v2/repository/models/${encodeURIComponent(model)}/load`).then(allow, (error) => {
    if ([404, 405].includes(error.status)) allow();
    else said.textContent = error.message.includes("--model-control-mode") ? "needs --model-control-mode explicit" : error.message;
  });
  return h("div", { class: "row" }, buttons, said);
}

/** Fills `place` with the page of a model; returns the function that ends it. */
export function modelPage(place, watch, tiles, model, version) {
  const state = h("div");
  const numbers = h("div", { class: "tiles" });
  const body = h("div", {}, h("p", { class: "quiet" }, "…"));
  const buttons = control(model);
  place.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← all models")), h("h1", {}, model, version && h("span", { class: "quiet" }, ` version ${version}`)), state, buttons, numbers, body);
  let isShown = false;

  async function load() {
    try {
      // Neither the configuration nor an example of the model's own is there for everybody.
      const [metadata, config, example] = await Promise.all([
        call(modelPath(model, version)),
        call(`${modelPath(model, version)}/config`).catch(() => null),
        call(`${modelPath(model, version)}/example`).catch(() => null),
      ]);
      body.replaceChildren(tryIt(model, version, metadata, config, example), describe(metadata, config));
      isShown = true;
    } catch (error) {
      isShown = false;
      body.replaceChildren(notice(error));
    }
  }
  let seen = null;
  return watch.listen(() => {
    const entries = watch.index.filter((entry) => entry.name === model && (!version || entry.version === version));
    state.replaceChildren(...entries.filter((entry) => entry.hasState !== false).map((entry) => h("p", {}, `version ${entry.version ?? "–"} `, badge(entry.state ?? "not loaded", entry.state === "READY" ? "good" : "warn"), " ", entry.reason ?? "")));
    buttons.hidden = watch.stateError != null;
    // The metadata belongs to what is loaded now; a form that somebody fills in is left alone.
    const now = JSON.stringify(entries.map((entry) => [entry.version, entry.state]));
    if (now !== seen) {
      seen = now;
      if (!isShown || !entries.some((entry) => entry.state === "READY")) load();
    }
    const newest = version ?? entries.filter((entry) => entry.state === "READY").at(-1)?.version ?? watch.newest(model) ?? "";
    tiles(numbers, watch, model, newest);
  });
}
