"""A typical Python server for embeddings: `tokenizers`, ONNX Runtime on one thread, and Starlette on uvicorn with its C
extensions.

    python python_server.py DIRECTORY PORT MAX_LENGTH

Answers `POST /v1/embeddings` in OpenAI's format: the mean over the mask, normalized.
"""

import pathlib
import sys

import numpy as np
import onnxruntime
import orjson
import tokenizers
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

DIRECTORY, PORT, LENGTH = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def load():
    tokenizer = tokenizers.Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(DIRECTORY / "model.onnx"), options, providers=["CPUExecutionProvider"])
    inputs = [node.name for node in session.get_inputs()]
    output = next(node.name for node in session.get_outputs() if len(node.shape) == 3)
    return tokenizer, session, inputs, output


TOKENIZER, SESSION, INPUTS, OUTPUT = load()


def embed(texts):
    encoded = TOKENIZER.encode_batch(texts)
    values = {
        "input_ids": lambda: [row.ids for row in encoded], "attention_mask": lambda: [row.attention_mask for row in encoded],
        "token_type_ids": lambda: [row.type_ids for row in encoded],
    }
    feed = {name: np.array(values[name](), np.int64) for name in INPUTS}
    hidden = SESSION.run([OUTPUT], feed)[0]
    mask = feed["attention_mask"][:, :, None].astype(np.float32)
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True), int(mask.sum())


async def embeddings(request):
    body = orjson.loads(await request.body())
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors, tokens = embed(texts)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": body.get("model"), "usage": usage}
    return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


if __name__ == "__main__":
    application = Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"])])
    uvicorn.run(application, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
