// Elements made from values. Text always becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child != null && child !== false));
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A table; columns that begin with "#" hold numbers. A row with a `reason` is followed by that text over the whole width. */
export function table(columns, rows, attributes = {}) {
  const classes = columns.map((column) => (column.startsWith("#") ? "number" : ""));
  const head = columns.map((column, i) => h("th", { scope: "col", class: classes[i] }, column.replace(/^#/, "")));
  const body = rows.flatMap((row) => [
    h("tr", { class: row.reason ? "has-reason" : null }, row.map((cell, i) => h("td", { class: classes[i] }, cell))),
    row.reason && h("tr", {}, h("td", { colspan: columns.length }, h("div", { class: "reason quiet", tabindex: "0" }, row.reason))),
  ]);
  return h("div", { class: "scroll", ...attributes }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Tabs; `entries` is a list of [name, function that makes the panel]. */
export function tabs(label, entries) {
  const panel = h("div", { role: "tabpanel", tabindex: "0" });
  const buttons = entries.map(([name], i) =>
    h("button", { type: "button", role: "tab", onclick: () => choose(i), onkeydown: (event) => move(event, i) }, name));
  function choose(chosen) {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === chosen));
      button.tabIndex = i === chosen ? 0 : -1;
    });
    panel.replaceChildren(entries[chosen][1]());
    panel.setAttribute("aria-label", entries[chosen][0]);
  }
  function move(event, from) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const to = (from + step + buttons.length) % buttons.length;
    choose(to);
    buttons[to].focus();
  }
  choose(0);
  return h("div", {}, h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panel);
}

export const badge = (text, kind) => h("span", { class: `badge ${kind}` }, text);

export function bytes(count) {
  if (count == null) return "–";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= size) return `${(count / size).toFixed(count >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${count} B`;
}

export function seconds(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toFixed(value >= 0.01 ? 0 : 1)} ms` : `${Math.round(value * 1e6)} µs`;
}

export function count(value) {
  if (value == null) return "–";
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(value % 1 === 0 ? 0 : 1);
}
