"""Trains the example models on scikit-learn's scans of handwritten digits, and records what they should answer.

    pip install scikit-learn skl2onnx onnxruntime
    python make_models.py

Writes, beside this file:
- models/digits: a neural network of one hidden layer, and models/digits_forest: a random forest. Inputs are the 64
  pixels of 8 x 8 images, rows from top to bottom, values from 0 (paper) to 16 (ink).
- requests/digits.json: the images that were held back from training, as an inference request.
- requests/digits.npy: the same images as a file of tensors, in a byte each.
- requests/digits.labels.json: what the images show, which label each model gives them, and how many are right.
- requests/one_digit.json: one of these images, a 7.
"""

import json
import pathlib

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = pathlib.Path(__file__).parent


def request(images):
    """An inference request in the protocol's JSON; pixels are integers."""
    pixels = {"name": "X", "shape": list(images.shape), "datatype": "FP32", "data": images.astype(int).ravel().tolist()}
    return json.dumps({"inputs": [pixels]})


def main():
    digits = load_digits()
    images, held_back, labels, truth = train_test_split(
        digits.data.astype(np.float32), digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    models = {
        "digits": MLPClassifier((64,), max_iter=400, random_state=0),
        "digits_forest": RandomForestClassifier(60, max_leaf_nodes=29, random_state=0),
    }
    record = {"truth": truth.tolist(), "models": {}}
    for name, model in models.items():
        model.fit(images, labels)
        exported = to_onnx(model, images[:1], options={id(model): {"zipmap": False}}, target_opset={"": 18, "ai.onnx.ml": 3})
        path = HERE / "models" / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(exported.SerializeToString())

        answer, probabilities = onnxruntime.InferenceSession(path).run(None, {"X": held_back})
        right = int((answer == truth).sum())
        record["models"][name] = {"labels": answer.tolist(), "right": right}
        print(f"{name}: {path.stat().st_size >> 10} KiB, {right} of {len(truth)} right")

    folder = HERE / "requests"
    folder.mkdir(exist_ok=True)
    (folder / "digits.json").write_text(request(held_back) + "\n")
    np.save(folder / "digits.npy", held_back.astype(np.uint8))
    (folder / "digits.labels.json").write_text(json.dumps(record) + "\n")
    seven = held_back[np.flatnonzero(truth == 7)[:1]]
    (folder / "one_digit.json").write_text(request(seven) + "\n")
    for row in seven.reshape(8, 8).astype(int):
        print("".join(" .:-=+*#%@"[pixel * 9 // 16] * 2 for pixel in row))


if __name__ == "__main__":
    main()
