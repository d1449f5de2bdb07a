"""A tour: tensors in four formats, a scikit-learn model and a model in Python, served and asked.

    pip install tensorferry scikit-learn
    python tour.py
"""

import asyncio
import atexit
import json
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import tensorferry
from tensorferry import AsyncClient, Client, load_file, save_file

folder = Path(tempfile.mkdtemp())

# Files: the name says the format when one is written, the content when it is read.
weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.int64)}
for name in ("weights.safetensors", "weights.zt", "weights.npz", "weights.gguf"):
    save_file(weights, folder / name)
    assert np.array_equal(load_file(folder / name)["w"], weights["w"])
    print(name, (folder / name).stat().st_size, "bytes")

# A repository of models: an estimator as it was saved, and a program.
models = folder / "models"
(models / "iris" / "1").mkdir(parents=True)
x, y = load_iris(return_X_y=True)
joblib.dump(LogisticRegression(max_iter=1000).fit(x, y), models / "iris" / "1" / "model.joblib")

(models / "words" / "1").mkdir(parents=True)
(models / "words" / "1" / "model.py").write_text(
    '''
import numpy as np
from tensorferry_model import InferenceError

class Model:
    inputs = {"text": ("BYTES", [-1])}
    outputs = {"words": ("INT64", [-1])}

    def infer(self, text):
        if any(len(line) > 1000 for line in text):
            raise InferenceError("a text has at most 1000 bytes")
        # Requests that come together are one batch.
        return {"words": np.array([len(line.split()) for line in text])}
'''
)

# A third one, which gives its answers one by one.
(models / "countdown" / "1").mkdir(parents=True)
(models / "countdown" / "1" / "model.py").write_text(
    '''
class Model:
    inputs = {"from": ("INT64", [1])}
    outputs = {"left": ("INT64", [1])}

    def infer(self, **inputs):
        for left in range(int(inputs["from"][0]), -1, -1):
            yield [left]
'''
)

# The server runs them with this Python.
command = [sys.executable, "-m", "tensorferry", "serve", str(models), "--allow-python", "--allow-pickle"]
addresses = ["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"]
server = subprocess.Popen(command + addresses, stdout=subprocess.PIPE, text=True)
atexit.register(server.kill)
url = grpc = None
for line in server.stdout:
    address = line.split()[-1].removeprefix("http://") if line.split() else ""
    if "HTTP" in line and url is None:
        url = f"http://{address}"
    if "gRPC" in line and grpc is None:
        grpc = f"grpc://{address}"
    if " after " in line:
        break

client = Client(url)
outputs = client.infer("iris", {"X": x[:3]}, outputs=["predict", "predict_proba"])
print("iris", outputs["predict"].tolist(), outputs["predict_proba"].round(2).tolist())

with ThreadPoolExecutor(8) as pool:
    lines = [f"{'word ' * count}".encode() for count in range(20)]
    answers = pool.map(lambda line: client.infer("words", {"text": np.array([line])})["words"].item(), lines)
    print("words", list(answers))

# What a client without any library would do.
body = json.dumps({"text": "plain JSON does as well"}).encode()
with urllib.request.urlopen(f"{url}/v2/models/words/generate", body) as answer:
    print("generate", json.load(answer))

# A stream: several answers to one request, each as the model makes it.
with Client(grpc).stream() as stream:
    stream.send("countdown", {"from": np.array([3])})
    stream.finish()
    print("stream", [answer.outputs["left"].item() for answer in stream if answer.outputs])

# The same as server-sent events, which any client of HTTP reads.
with urllib.request.urlopen(f"{url}/v2/models/countdown/generate_stream", json.dumps({"from": 2}).encode()) as events:
    print("events", [json.loads(event[6:])["left"] for event in events if event.startswith(b"data: ")])


async def at_once():
    waiting = AsyncClient(grpc)
    answers = await asyncio.gather(*(waiting.infer("iris", {"X": x[i : i + 1]}) for i in range(0, 150, 30)))
    return [answer["predict"].item() for answer in answers]


print("asyncio", asyncio.run(at_once()))


# In a test or a notebook no program is needed: functions and files are served from here.
@tensorferry.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"sum": ("FP32", [-1])})
def sums(x):
    return x.sum(axis=1)


with tensorferry.Server(models={"sums": sums, "weights": folder / "weights.safetensors"}) as own:
    print("own", own.client().infer("sums", {"x": weights["w"]})["sum"].tolist())
    print("weights", own.client().infer("weights", {}, outputs=["w"])["w"].tolist())

server.terminate()
sys.exit(server.wait())
