// The same call in other languages.

import { modelPath } from "./server.js";

const NUMPY = {
  BOOL: "np.bool_", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64", INT8: "np.int8",
  INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BYTES: "np.object_",
};
const RUST = {
  BOOL: "bool", UINT8: "u8", UINT16: "u16", UINT32: "u32", UINT64: "u64", INT8: "i8", INT16: "i16", INT32: "i32",
  INT64: "i64", FP16: "tensor_core::f16", BF16: "tensor_core::bf16", FP32: "f32", FP64: "f64",
};
const SHOWN = 2000;

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const isLong = (request) => JSON.stringify(request).length > SHOWN;
const isShort = (input) => JSON.stringify(input.data).length <= SHOWN && input.shape.length > 0;

/** Flat data as lists in lists, as deep as the shape. */
function nested(data, shape) {
  const [count, ...rest] = shape;
  if (!rest.length) return data;
  const size = rest.reduce((all, dim) => all * dim, 1);
  return Array.from({ length: count }, (_, i) => nested(data.slice(i * size, (i + 1) * size), rest));
}

const identifier = (name, i) => (/^[a-z_]\w*$/i.test(name) ? name.toLowerCase() : `input_${i}`);

function inPython(input) {
  const dtype = NUMPY[input.datatype] ?? "np.float32";
  return JSON.stringify(input.data).length > SHOWN
    ? `np.zeros(${python(input.shape)}, dtype=${dtype})  # your data`
    : input.data.length && input.shape.length
      ? `np.array(${python(nested(input.data, input.shape))}, ${dtype})`
      : `np.array(${python(input.data)}, ${dtype}).reshape(${python(input.shape)})`;
}

/** A float as Rust has it; requests have those that JSON lacks as strings. */
function rustFloat(value, type) {
  const special = { NaN: "NAN", Infinity: "INFINITY", "-Infinity": "NEG_INFINITY" }[value];
  const text = String(value);
  return special ? `${type}::${special}` : /[.e]/.test(text) ? text : `${text}.0`;
}

const rustString = (value) =>
  JSON.stringify(value).replace(/\\u([0-9a-f]{4})|\\([bf])/g, (_, code, letter) => `\\u{${code ?? { b: "8", f: "c" }[letter]}}`);

function inRust({ datatype, shape, data }) {
  const dims = `tensor_core::Shape::new(&${JSON.stringify(shape)})?`;
  const isLarge = JSON.stringify(data).length > SHOWN;
  const list = (one) => (isLarge ? "data" : `vec![${data.map(one).join(", ")}]`);
  if (datatype === "BYTES") return `oip_types::BytesTensor::from_elements(${dims}, ${list(rustString)})?`;
  const type = RUST[datatype];
  const values = {
    FP16: () => `${list((value) => rustFloat(value, "f32"))}.into_iter().map(${type}::from_f32).collect()`,
    FP32: () => list((value) => rustFloat(value, type)),
    FP64: () => list((value) => rustFloat(value, type)),
  };
  values.BF16 = values.FP16;
  return `tensor_core::Tensor::from_vec::<${type}>(${dims}, ${(values[datatype] ?? (() => list(String)))()})?`;
}

/** A list of [language, text] for a request to a model; `hasToken` is whether the caller must show one, `place` where the server is. */
export function snippets(model, version, request, hasToken, place = location) {
  const body = { inputs: request.inputs };
  // As the server's own lines have it. The certificate is a file that only the person knows.
  const trust = (option) => (place.protocol === "https:" ? `# where this machine does not trust the server's certificate: ${option}\n` : "");
  const url = `${place.origin}${modelPath(model, version)}/infer`;
  const name = JSON.stringify(model);
  const file = isLong(body);
  const header = hasToken ? ' -H "Authorization: Bearer $TOKEN"' : "";
  const curl = trust("--cacert FILE") + (file
    ? `# request.json holds the JSON of the request\ncurl -s ${quoted(url)}${header} -d @request.json`
    : `curl -s ${quoted(url)}${header} -d ${quoted(JSON.stringify(body))}`);
  const client = [
    "# pip install tritonclient[http] numpy",
    ...trust('ssl_options={"ca_certs": FILE}').split("\n").slice(0, -1),
    ...(hasToken ? ["import os"] : []),
    "import numpy as np",
    "import tritonclient.http as triton",
    "",
    `client = triton.InferenceServerClient(${JSON.stringify(place.host)}${place.protocol === "https:" ? ", ssl=True" : ""})`,
    "inputs = []",
    ...request.inputs.flatMap((input) => [
      `value = ${inPython(input)}`,
      `inputs.append(triton.InferInput(${JSON.stringify(input.name)}, list(value.shape), ${JSON.stringify(input.datatype)}))`,
      "inputs[-1].set_data_from_numpy(value)",
    ]),
    `result = client.infer(${name}, inputs${version ? `, model_version=${JSON.stringify(version)}` : ""}${hasToken ? ', headers={"Authorization": "Bearer " + os.environ["TOKEN"]}' : ""})`,
    "for output in result.get_response()[\"outputs\"]:",
    "    print(output[\"name\"], result.as_numpy(output[\"name\"]))",
  ].join("\n");
  const isLarge = request.inputs.some((input) => inPython(input).includes("# your data"));
  const given = request.inputs.map((input) => `${JSON.stringify(input.name)}: ${inPython(input).replace("  # your data", "")}`).join(", ");
  const ours = [
    "# the Python package tensorferry, numpy",
    ...trust("authorities=FILE").split("\n").slice(0, -1),
    ...(hasToken ? ["import os"] : []),
    "import numpy as np, tensorferry",
    "",
    ...(isLarge ? ["# zeros stand for your data"] : []),
    `print(tensorferry.Client(${JSON.stringify(place.origin)}${hasToken ? ', headers={"Authorization": "Bearer " + os.environ["TOKEN"]}' : ""})`
      + `.infer(${name}, {${given}}${version ? `, version=${JSON.stringify(version)}` : ""}))`,
  ].join("\n");
  const values = (input) => (isShort(input) ? JSON.stringify(nested(input.data, input.shape)) : `${identifier(input.name, 0)}.npy`);
  const tool = [
    `${trust("--ca FILE")}tensor infer --url ${quoted(place.origin)} --model ${quoted(model)}${version ? ` --version ${quoted(version)}` : ""}${hasToken ? ' --header "authorization=Bearer $TOKEN"' : ""} \\`,
    request.inputs.map((input) => `    -i ${quoted(`${input.name}=${values(input)}`)}${isShort(input) ? "" : " --cast"}`).join(" \\\n"),
  ].join("\n");
  const rust = [
    "// oip-client, oip-types, tensor-core, tokio",
    "let client = oip_client::builder(" + JSON.stringify(place.origin) + ")" + (hasToken ? '.header("authorization", format!("Bearer {token}"))' : "") + ".build()?;",
    `let model = oip_types::ModelRef::new(${name}, ${version ? `Some(${JSON.stringify(version)})` : "None"})?;`,
    "let request = oip_types::InferRequest::new(model)",
    ...request.inputs.map((input) => `    .with_input(${rustString(input.name)}, ${inRust(input)})`),
  ].join("\n") + ";\nlet response = client.infer(&request).await?;";
  return [["curl", curl], ["Python", ours], ["tritonclient", client], ["tensor", tool], ["Rust", rust]];
}
