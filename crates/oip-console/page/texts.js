// Inputs of text models: a box to write texts into.

import { bytes, h } from "./dom.js";

/** Whether an input of a model is a list of texts. */
export const isTexts = (model, input) =>
  input.datatype === "BYTES" && input.shape.length === 1 && input.shape[0] === -1 && (model.platform === "text" || /^text(_pair)?$/.test(input.name));

const EXAMPLES = { text: "A cat sat on the mat.", text_pair: "A kitten is lying on a rug." };

/** Fields for a list of texts; `read` gives it as the request has it. */
export function textFields(input, i) {
  // The configuration, which says what may be left out, is not there for everybody.
  const optional = input.name === "text_pair";
  const used = h("input", { type: "checkbox", id: `used-${i}` });
  const box = h("textarea", { id: `data-${i}`, rows: 5, "aria-label": `texts for ${input.name}` });
  box.value = EXAMPLES[input.name] ?? EXAMPLES.text;
  const each = h("select", { "aria-label": `what is a text of ${input.name}` }, h("option", {}, "each line is a text"), h("option", {}, "all of it is one text"));
  const note = h("p", { class: "quiet", role: "status" });

  function texts() {
    if (each.selectedIndex === 1) return [box.value];
    const lines = box.value.split(/\r?\n/);
    // The line break behind the last line begins none.
    return lines.length > 1 && lines.at(-1) === "" ? lines.slice(0, -1) : lines;
  }

  function count() {
    const count = texts().length;
    note.textContent = count === 1 ? "1 text" : `${count.toLocaleString("en")} texts`;
  }

  async function load(file) {
    box.value = await file.text();
    count();
    note.textContent += ` of ${file.name}, ${bytes(file.size)}`;
  }

  const file = h("input", { type: "file", "aria-label": `file for ${input.name}`, accept: ".txt,text/*", onchange: () => file.files[0] && load(file.files[0]) });
  // What is written is meant to be sent.
  box.addEventListener("input", () => { used.checked = true; count(); });
  each.addEventListener("change", count);
  count();
  const fields = h("fieldset", {},
    h("legend", {}, input.name, h("span", { class: "quiet" }, " texts")),
    optional && h("div", { class: "row" }, h("label", { for: `used-${i}` }, used, "send")),
    box,
    h("div", { class: "row" }, each, h("label", {}, "text file", file)),
    note);

  function read() {
    if (optional && !used.checked) return null;
    const data = texts();
    return { name: input.name, datatype: "BYTES", shape: [data.length], data };
  }

  return { fields, read, optional, isGiven: false, use: () => { used.checked = true; } };
}
