// The server: its calls, and its numbers over the last minutes.

/** A call that failed; the message is the server's. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Where this tab keeps the token; the page at /docs reads the same. */
const TOKEN = "tensorferry-token";

/** The token, and whether a call was refused for want of one, or of another. */
export const access = { isRefused: false, token: () => sessionStorage.getItem(TOKEN) ?? "" };

/** Sends this token with each call from now on; an empty one removes it. */
export function useToken(token) {
  access.isRefused = false;
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** Asks the server, with the token; returns the response whatever its status is. */
async function ask(path, options = {}) {
  const token = access.token();
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch {
    throw new CallError(0, "The server cannot be reached.");
  }
}

/** The server's own words for what it refuses. */
async function refusal(response) {
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error ?? text;
  } catch {
    // Not every error has a body.
  }
  // With a table of identities, 403 names the identity; other refusals are the same with a token.
  if (response.status === 401 || (response.status === 403 && message.startsWith("identity '"))) access.isRefused = true;
  return new CallError(response.status, message || `HTTP status ${response.status}`);
}

/** Calls the server; returns the parsed body, or undefined when there is none. */
export async function call(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: typeof body === "string" ? body : JSON.stringify(body) };
  const response = await ask(path, options);
  if (!response.ok) throw await refusal(response);
  const text = await response.text();
  return text && parse(text);
}

/** A page of text, such as the metrics. */
export async function text(path) {
  const response = await ask(path);
  if (!response.ok) throw await refusal(response);
  return response.text();
}

/** JSON, with integers beyond 2^53 as strings so that no digit is lost. */
function parse(text) {
  const source = (key, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? context.source : value;
  return JSON.parse(text, source);
}

export const modelPath = (name, version) =>
  `/v2/models/${encodeURIComponent(name)}${version ? `/versions/${encodeURIComponent(version)}` : ""}`;

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Reads Prometheus' text format: a map from name to a list of { labels, value }. */
export function readMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const match = line[0] !== "#" && SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
    }
    if (!families.has(match[1])) families.set(match[1], []);
    families.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return families;
}

const key = (labels) => JSON.stringify([labels.model, labels.version ?? ""]);

/** What one look at the metrics says, by model and version, and for the server. */
function snapshot(families) {
  const models = new Map();
  const of = (labels) => {
    if (!models.has(key(labels))) models.set(key(labels), { requests: 0, failures: 0, rows: 0, runs: 0, pending: 0, buckets: new Map() });
    return models.get(key(labels));
  };
  const add = (family, field) => {
    for (const { labels, value } of families.get(family) ?? []) of(labels)[field] += value;
  };
  add("nv_inference_request_success", "requests");
  add("nv_inference_request_failure", "failures");
  add("nv_inference_count", "rows");
  add("nv_inference_exec_count", "runs");
  add("nv_inference_pending_request_count", "pending");
  for (const { labels, value } of families.get("oip_request_duration_seconds_bucket") ?? []) {
    of(labels).buckets.set(labels.le === "+Inf" ? Infinity : Number(labels.le), value);
  }
  const memories = new Map((families.get("oip_model_memory_bytes") ?? []).map(({ labels, value }) => [key(labels), value]));
  const single = (name) => families.get(name)?.[0]?.value;
  return {
    time: performance.now() / 1000,
    models,
    memoryOf: (model, version) => memories.get(key({ model, version })),
    memory: single("process_resident_memory_bytes"),
    budgetUsed: single("oip_memory_budget_used_bytes"),
    budget: single("oip_memory_budget_bytes"),
    threads: single("process_threads"),
    processor: single("process_cpu_seconds_total"),
    started: single("process_start_time_seconds"),
  };
}

/** The value below which this part of the requests between two looks lies, from histogram buckets. */
function quantile(part, before, now) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => now.get(bound) - (before.get(bound) ?? 0));
  const all = counts.at(-1);
  if (!(all > 0)) return null;
  const wanted = part * all;
  const i = counts.findIndex((count) => count >= wanted);
  const [low, high] = [i ? bounds[i - 1] : 0, bounds[i]];
  if (high === Infinity) return low;
  const below = i ? counts[i - 1] : 0;
  return low + ((high - low) * (wanted - below)) / (counts[i] - below || 1);
}

/** Numbers between two looks. A counter that went down belongs to a model that was loaded again, and counts from 0. */
function between(before, now, elapsed) {
  const rise = (field) => (now[field] >= before[field] ? now[field] - before[field] : now[field]);
  const old = now.requests >= before.requests ? before.buckets : new Map();
  const runs = rise("runs");
  return {
    rate: rise("requests") / elapsed,
    errors: rise("failures") / elapsed,
    pending: now.pending,
    batch: runs ? rise("rows") / runs : null,
    p50: quantile(0.5, old, now.buckets),
    p99: quantile(0.99, old, now.buckets),
  };
}

const EMPTY = { requests: 0, failures: 0, rows: 0, runs: 0, pending: 0, buckets: new Map() };
const KEPT = 90;

/** The sum over all models, with joined histograms. */
function total(look) {
  const sum = { ...EMPTY, buckets: new Map() };
  for (const model of look.models.values()) {
    for (const field of ["requests", "failures", "rows", "runs", "pending"]) sum[field] += model[field];
    for (const [bound, value] of model.buckets) sum.buckets.set(bound, (sum.buckets.get(bound) ?? 0) + value);
  }
  return sum;
}

/** Looks at the server again and again, and tells its listeners. */
export class Watch {
  constructor() {
    this.listeners = new Set();
    this.history = [];
    this.index = [];
    // Why the server cannot be asked, and why it does not list models, states of models, or numbers.
    this.error = this.listError = this.stateError = this.metricsError = null;
    this.hasLooked = false;
  }

  /** Calls back now and after each look; returns the function that ends it. */
  listen(callback) {
    this.listeners.add(callback);
    callback(this);
    return () => this.listeners.delete(callback);
  }

  async look() {
    try {
      await this.list();
      const ready = await ask("/v2/health/ready");
      this.ready = ready.ok ? true : [401, 403].includes(ready.status) ? null : false;
      this.reason = ready.ok ? "" : (await refusal(ready)).message;
      const metrics = await ask("/metrics");
      this.metricsError = metrics.ok ? null : await refusal(metrics);
      if (metrics.ok) this.add(snapshot(readMetrics(await metrics.text())));
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.hasLooked = true;
    for (const listener of this.listeners) listener(this);
  }

  /** Asks for all versions with their states, or, where that is refused, for the models' names. */
  async list() {
    this.listError = this.stateError = null;
    try {
      this.index = (await call("/v2/repository/index", "{}")) ?? [];
      return;
    } catch (error) {
      if (!error.status) throw error;
      this.stateError = error;
    }
    try {
      this.index = ((await call("/v2/models")).models ?? []).map((name) => ({ name, hasState: false }));
    } catch (error) {
      if (!error.status) throw error;
      this.index = [];
      this.listError = error;
    }
  }

  /** The newest version of a model that the metrics know. */
  newest(model) {
    const known = [...(this.last?.models.keys() ?? [])].map((name) => JSON.parse(name)).filter(([name]) => name === model);
    return known.map(([, version]) => version).sort((a, b) => a - b).at(-1);
  }

  add(look) {
    const before = this.last;
    this.last = look;
    if (!before) return;
    const elapsed = look.time - before.time || 1;
    const entry = { look, all: between(total(before), total(look), elapsed), models: new Map() };
    for (const [name, model] of look.models) entry.models.set(name, between(before.models.get(name) ?? EMPTY, model, elapsed));
    entry.processor = look.processor == null ? null : (look.processor - before.processor) / elapsed;
    this.history.push(entry);
    if (this.history.length > KEPT) this.history.shift();
  }

  /** A number of a model over time, or of the server when no model is given. */
  series(field, model, version) {
    return this.history.map((entry) => (model == null ? entry.all : entry.models.get(key({ model, version })))?.[field] ?? null);
  }

  async run() {
    for (;;) {
      if (!document.hidden) await this.look();
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}
