// The same call in other languages.

import { modelPath } from "./server.js";

const NUMPY = {
  BOOL: "np.bool_", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64", INT8: "np.int8",
  INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BYTES: "np.object_",
};
const RUST = {
  BOOL: "bool", UINT8: "u8", UINT16: "u16", UINT32: "u32", UINT64: "u64", INT8: "i8", INT16: "i16", INT32: "i32",
  INT64: "i64", FP32: "f32", FP64: "f64",
};
const SHOWN = 2000;

const python = (value) => JSON.stringify(value).replace(/\btrue\b/g, "True").replace(/\bfalse\b/g, "False").replace(/\bnull\b/g, "None");
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
    : `np.array(${python(input.data)}, dtype=${dtype}).reshape(${python(input.shape)})`;
}

/** A list of [language, text] for a request to a model. */
export function snippets(model, version, request) {
  const body = { inputs: request.inputs };
  const url = `${location.origin}${modelPath(model, version)}/infer`;
  const name = JSON.stringify(model);
  const file = isLong(body);
  const curl = file
    ? `# request.json holds the JSON of the request\ncurl -s ${quoted(url)} -d @request.json`
    : `curl -s ${quoted(url)} -d ${quoted(JSON.stringify(body))}`;
  const client = [
    "# pip install tritonclient[http] numpy",
    "import numpy as np",
    "import tritonclient.http as triton",
    "",
    `client = triton.InferenceServerClient(${JSON.stringify(location.host)})`,
    "inputs = []",
    ...request.inputs.flatMap((input) => [
      `value = ${inPython(input)}`,
      `inputs.append(triton.InferInput(${JSON.stringify(input.name)}, list(value.shape), ${JSON.stringify(input.datatype)}))`,
      "inputs[-1].set_data_from_numpy(value)",
    ]),
    `result = client.infer(${name}, inputs${version ? `, model_version=${JSON.stringify(version)}` : ""})`,
    "for output in result.get_response()[\"outputs\"]:",
    "    print(output[\"name\"], result.as_numpy(output[\"name\"]))",
  ].join("\n");
  const values = (input) => (isShort(input) ? JSON.stringify(nested(input.data, input.shape)) : `${identifier(input.name, 0)}.npy`);
  const tool = [
    `tensor infer --url ${quoted(location.origin)} --model ${quoted(model)}${version ? ` --version ${quoted(version)}` : ""} \\`,
    request.inputs.map((input) => `    -i ${quoted(`${input.name}=${values(input)}`)}${isShort(input) ? "" : " --cast"}`).join(" \\\n"),
  ].join("\n");
  const rust = [
    "// oip-client, oip-types, tensor-core, tokio",
    "let client = oip_client::builder(" + JSON.stringify(location.origin) + ").build()?;",
    `let model = oip_types::ModelRef::new(${name}, ${version ? `Some(${JSON.stringify(version)})` : "None"})?;`,
    "let request = oip_types::InferRequest::new(model)",
    ...request.inputs.map((input) => {
      const data = JSON.stringify(input.data).length > SHOWN ? "data" : `vec!${JSON.stringify(input.data)}`;
      const shape = `tensor_core::Shape::new(&${JSON.stringify(input.shape)})?`;
      const tensor = input.datatype === "BYTES"
        ? `oip_types::BytesTensor::from_elements(${shape}, ${data})?`
        : `tensor_core::Tensor::from_vec::<${RUST[input.datatype] ?? "half::f16"}>(${shape}, ${data})?`;
      return `    .with_input(${JSON.stringify(input.name)}, ${tensor})`;
    }),
  ].join("\n") + ";\nlet response = client.infer(&request).await?;";
  return [["curl", curl], ["Python", client], ["tensor", tool], ["Rust", rust]];
}
