// Drawings: lines over time, bars, pipelines as graphs.

import { s } from "./dom.js";

/** A line of the last values; gaps (null) are left out. */
export function sparkline(values, label) {
  const top = Math.max(...values.filter((value) => value != null), 0) || 1;
  const points = values
    .map((value, i) => (value == null ? null : [(i * 100) / Math.max(values.length - 1, 1), 34 - (32 * value) / top]))
    .filter(Boolean);
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
  const area = points.length > 1 && `${path}L${points.at(-1)[0].toFixed(2)} 36L${points[0][0].toFixed(2)} 36Z`;
  return s("svg", { viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": label },
    area && s("path", { class: "area", d: area }), points.length > 1 && s("path", { class: "line", d: path }));
}

/** Horizontal bars for [name, value] pairs. */
export function bars(entries, label) {
  const row = 22;
  // Text is scaled with the drawing, so that a phone gets a narrower one.
  const breadth = innerWidth < 500 ? 150 : 280;
  const least = Math.min(0, ...entries.map(([, value]) => value));
  const most = Math.max(0, ...entries.map(([, value]) => value));
  const scale = breadth / (most - least || 1);
  const zero = 110 - least * scale;
  return s("svg", { class: "bars", viewBox: `0 0 ${breadth + 200} ${entries.length * row}`, role: "img", "aria-label": label },
    entries.map(([name, value], i) => {
      const width = Math.abs(value) * scale;
      return s("g", {},
        s("text", { x: 100, y: i * row + 15, "text-anchor": "end" }, String(name).slice(0, 14)),
        s("rect", { class: value < 0 ? "below" : "", x: value < 0 ? zero - width : zero, y: i * row + 3, width: Math.max(width, 0.5), height: row - 6 }),
        s("text", { x: breadth + 116, y: i * row + 15 }, Number.isInteger(value) ? String(value) : value.toPrecision(4)));
    }));
}

/**
 * The steps of a pipeline, in columns by how many steps are before them, and the tensors between them.
 *
 * `config` is a model configuration with `ensemble_scheduling`.
 */
export function pipeline(config) {
  const steps = config.ensemble_scheduling.step.map((step, i) => ({ ...step, key: `step ${i}` }));
  const nodes = [
    { key: "in", title: "request", takes: [], gives: config.input.map((input) => input.name) },
    ...steps.map((step) => ({
      key: step.key,
      title: step.model_name,
      takes: Object.values(step.input_map ?? {}),
      gives: Object.values(step.output_map ?? {}),
    })),
    { key: "out", title: "response", takes: config.output.map((output) => output.name), gives: [] },
  ];
  const edges = [];
  for (const to of nodes) {
    for (const name of to.takes) {
      const from = nodes.find((node) => node !== to && node.gives.includes(name));
      if (from) edges.push({ from, to, name });
    }
  }
  // Each node stands behind all that it needs. There is no cycle: the server refuses one.
  nodes.forEach((node) => { node.column = 0; });
  for (let round = 0; round < nodes.length; round++) {
    for (const { from, to } of edges) to.column = Math.max(to.column, from.column + 1);
  }
  nodes.at(-1).column = Math.max(...nodes.map((node) => node.column), 1);
  const heights = [];
  for (const node of nodes) {
    node.row = heights[node.column] ?? 0;
    heights[node.column] = node.row + 1;
  }
  const [width, height, gapX, gapY] = [150, 36, 90, 26];
  const x = (node) => 6 + node.column * (width + gapX);
  const y = (node) => 14 + node.row * (height + gapY);
  const size = [6 + (nodes.at(-1).column + 1) * (width + gapX) - gapX + 6, 14 + Math.max(...heights.filter(Boolean)) * (height + gapY)];
  const lines = edges.map(({ from, to, name }, i) => {
    const [x1, y1, x2, y2] = [x(from) + width, y(from) + height / 2, x(to) - 4, y(to) + height / 2];
    return s("g", {},
      s("path", { class: "edge", "marker-end": "url(#arrow)", d: `M${x1} ${y1}C${x1 + gapX / 2} ${y1} ${x2 - gapX / 2} ${y2} ${x2} ${y2}` }),
      s("text", { class: "name", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5 - 11 * (i % 2), "text-anchor": "middle" }, name.slice(0, 14)));
  });
  const boxes = nodes.map((node) => {
    const box = [
      s("title", {}, node.title),
      s("rect", { x: x(node), y: y(node), width, height, rx: 6 }),
      s("text", { x: x(node) + width / 2, y: y(node) + 23, "text-anchor": "middle" }, node.title.slice(0, 19)),
    ];
    return node.key.startsWith("step") ? s("a", { href: `#/models/${encodeURIComponent(node.title)}` }, box) : s("g", {}, box);
  });
  return s("svg", { class: "graph", viewBox: `0 0 ${size[0]} ${size[1]}`, width: size[0], role: "img",
      "aria-label": `pipeline of ${steps.map((step) => step.model_name).join(", ")}` },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      s("path", { d: "M0 0L8 4L0 8z" }))),
    lines, boxes);
}
