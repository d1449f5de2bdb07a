// The console: a page of all models, one for each, and the log.

import { badge, bytes, count, h, seconds, table } from "./dom.js";
import { sparkline } from "./draw.js";
import { modelPage } from "./model.js";
import { Watch, access, call, text, useToken } from "./server.js";

const watch = new Watch();
const content = document.getElementById("content");

const last = (values) => values.at(-1) ?? null;

/** What the server says about a call that it refuses. */
const reason = (error) => `${error.message}${error.status ? ` (HTTP ${error.status})` : ""}`;

/** A number, and its line over the last minutes. */
function tile(label, value, series) {
  return h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), series && sparkline(series, `${label} over the last minutes`));
}

/** The live numbers of a model, or of the server when there is no model. */
function tiles(place, { metricsError }, model, version) {
  if (metricsError) {
    const why = metricsError.status === 404 ? "the server has no /metrics (--allow-metrics=false)" : reason(metricsError);
    place.replaceChildren(h("p", { class: "quiet" }, `No numbers: ${why}.`));
    return;
  }
  const series = (field) => watch.series(field, model, version);
  const [rate, p50, p99, errors, pending, batch] = ["rate", "p50", "p99", "errors", "pending", "batch"].map(series);
  const shown = [
    tile("requests/s", count(last(rate)), rate),
    tile("p50", seconds(last(p50)), p50),
    tile("p99", seconds(last(p99)), p99),
    tile("failures/s", count(last(errors)), errors),
    tile("waiting", count(last(pending)), pending),
  ];
  if (model == null) {
    const of = (field) => watch.history.map((entry) => entry.look[field] ?? null);
    const processor = watch.history.map((entry) => entry.processor);
    shown.push(
      tile("memory", bytes(watch.last?.memory), of("memory")),
      tile("memory for requests", `${bytes(watch.last?.budgetUsed)} of ${bytes(watch.last?.budget)}`, of("budgetUsed")),
      tile("processors in use", count(last(processor)), processor));
  } else {
    shown.push(tile("rows per run", count(last(batch)), batch));
    const memory = watch.last?.memoryOf(model, version);
    if (memory != null) shown.push(tile("memory, about", bytes(memory)));
  }
  place.replaceChildren(...shown);
}

function overview() {
  const numbers = h("div", { class: "tiles" });
  const models = h("div");
  content.replaceChildren(h("h1", {}, "Models"), numbers, models);
  return watch.listen(() => {
    tiles(numbers, watch);
    const link = (entry) => `#/models/${encodeURIComponent(entry.name)}${entry.version ? `/${encodeURIComponent(entry.version)}` : ""}`;
    const rows = watch.index.map((entry) => {
      const version = entry.version ?? watch.newest(entry.name);
      const of = (field) => last(watch.series(field, entry.name, version));
      const row = [
        h("a", { href: link(entry) }, entry.name),
        entry.version ?? "–",
        entry.hasState === false ? "–" : badge(entry.state ?? "not loaded", entry.state === "READY" ? "good" : entry.state ? "warn" : "quiet"),
        count(of("rate")), seconds(of("p50")), seconds(of("p99")), count(of("pending")),
        bytes(watch.last?.memoryOf(entry.name, version)),
      ];
      row.reason = entry.reason;
      return row;
    });
    const { listError, stateError, hasLooked } = watch;
    if (listError) models.replaceChildren(h("p", { class: "notice bad", role: "alert" }, `The models are not listed: ${reason(listError)}.`));
    else if (rows.length) {
      models.replaceChildren(table(["model", "version", "state", "#requests/s", "#p50", "#p99", "#waiting", "#memory"], rows),
        stateError ? h("p", { class: "quiet" }, `Versions and states are not shown: ${reason(stateError)}.`) : "");
    } else if (hasLooked && !watch.error) {
      models.replaceChildren(h("p", { class: "notice" }, "The repository has no models. A model is a folder with a version folder in it: models/iris/1/model.onnx."));
    }
  });
}

/** The log's last lines, and what it shows. */
function logPage() {
  const settings = h("div", { class: "row" });
  const said = h("p", { role: "status", class: "bad" });
  const lines = h("ol", { class: "log" });
  content.replaceChildren(h("h1", {}, "Log"), settings, said, lines);
  const change = async (body) => {
    said.textContent = "";
    try {
      await call("/v2/logging", body);
    } catch (error) {
      said.textContent = error.message;
    }
    await show();
  };
  async function show() {
    try {
      const now = await call("/v2/logging");
      const level = now.log_verbose_level > 1 ? "trace" : now.log_verbose_level === 1 ? "debug" : now.log_info ? "info" : now.log_warning ? "warnings" : "errors";
      const choice = h("select", { id: "level", onchange: (event) => change(levels[event.target.value]) }, Object.keys(levels).map((name) => h("option", { selected: name === level }, name)));
      settings.replaceChildren(h("label", { for: "level" }, "What is logged: "), choice);
    } catch (error) {
      settings.replaceChildren(h("span", { class: "quiet" }, error.message));
    }
  }
  const levels = {
    errors: { log_warning: false, log_info: false, log_verbose_level: 0 },
    warnings: { log_warning: true, log_info: false, log_verbose_level: 0 },
    info: { log_warning: true, log_info: true, log_verbose_level: 0 },
    debug: { log_warning: true, log_info: true, log_verbose_level: 1 },
    trace: { log_warning: true, log_info: true, log_verbose_level: 2 },
  };
  show();
  let after = 0;
  let isAsking = false;
  return watch.listen(async () => {
    if (isAsking) return;
    isAsking = true;
    try {
      const tail = await call(`/console/log?after=${after}`);
      after = tail.next;
      // Newest first: what somebody looks for has just happened.
      lines.prepend(...tail.lines.map((line) => h("li", {}, line)).reverse());
      while (lines.childElementCount > 500) lines.lastChild.remove();
    } catch (error) {
      lines.replaceChildren(h("li", { class: "quiet" }, error.message));
    }
    isAsking = false;
  });
}

/** The metrics as Prometheus reads them, with the token that a link would not send. */
function metricsPage() {
  const shown = h("pre", { class: "whole", tabindex: "0" }, "…");
  content.replaceChildren(h("h1", {}, "Metrics"), h("p", { class: "quiet" }, "The text of /metrics, as it was when this page was opened."), shown);
  text("/metrics").then((metrics) => { shown.textContent = metrics; }, (error) => {
    shown.replaceWith(h("p", { class: "notice bad", role: "alert" }, reason(error)));
    showAccess();
  });
  return () => {};
}

/** The field for a token is there where one may help, or is in use. */
function showAccess() {
  const isInUse = access.token() !== "";
  document.getElementById("access").hidden = !access.isRefused && !isInUse;
  document.getElementById("forget").hidden = !isInUse;
  document.getElementById("access-note").textContent = isInUse
    ? "This tab sends its token with each call."
    : "The server answers some calls to known clients only. The token stays in this tab.";
}

function askWithToken(token) {
  if (!/^[!-~]*$/.test(token)) {
    document.getElementById("access-note").textContent = "A token has no spaces and no characters outside of ASCII.";
    return;
  }
  useToken(token);
  document.getElementById("token").value = "";
  showAccess();
  showServer();
  watch.look().then(route);
}

document.getElementById("access").addEventListener("submit", (event) => {
  event.preventDefault();
  askWithToken(document.getElementById("token").value.trim());
});
document.getElementById("forget").addEventListener("click", () => askWithToken(""));

let leave = () => {};

function route() {
  leave();
  const [, page, name, version] = location.hash.split("/").map(decodeURIComponent);
  if (page === "models" && name) leave = modelPage(content, watch, tiles, name, version);
  else if (page === "log") leave = logPage();
  else if (page === "metrics") leave = metricsPage();
  else leave = overview();
  const hash = page === "log" || page === "metrics" ? `#/${page}` : "#/";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === hash) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = name ? `${name} · Tensorferry` : "Tensorferry";
}

watch.listen(() => {
  const ready = document.getElementById("ready");
  const [state, kind] = watch.error ? [watch.error.message, "bad"]
    : watch.ready ? ["ready", "good"]
    : watch.ready === false ? [watch.reason || "not ready", "warn"]
    : watch.reason ? ["readiness not shown", "quiet"] : ["connecting", "quiet"];
  ready.textContent = state;
  ready.title = watch.reason ?? "";
  ready.className = `badge ${kind}`;
  showAccess();
});

function showServer() {
  call("/v2").then((server) => { document.getElementById("version").textContent = server.version; }, () => {});
}

showServer();
addEventListener("hashchange", () => { route(); content.focus(); });
route();
watch.run();
