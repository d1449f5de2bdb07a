"""Uses every control of the console in Chromium, as a person would, and takes a screenshot of each page.

    python console.py --server PROGRAM --tensor PROGRAM --chromium PROGRAM --models FOLDER --rust FILE --shots FOLDER

Fails if a control does not work, if the page reports an error, or if the page sends a request to another host.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import wave
import zlib

from playwright.sync_api import expect, sync_playwright

PATIENCE = 15_000


# An image of four squares: black, white, red and blue.
SQUARES = [[(0, 0, 0), (255, 255, 255)], [(255, 0, 0), (0, 0, 255)]]
SIDE = 16


def colour(row, column):
    return SQUARES[2 * row // SIDE][2 * column // SIDE]


def png():
    """Returns the squares as a PNG file."""
    rows = b"".join(b"\0" + bytes(value for column in range(SIDE) for value in colour(row, column)) for row in range(SIDE))
    chunk = lambda name, body: struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def identity(element, dims):
    """Returns an ONNX model that returns its input, as protobuf written field by field."""
    def number(value):
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])
    varint = lambda field, value: number(field << 3) + number(value)
    part = lambda field, body: number(field << 3 | 2) + number(len(body)) + body
    shape = b"".join(part(1, varint(1, dim) if isinstance(dim, int) else part(2, dim.encode())) for dim in dims)
    value = lambda name: part(1, name) + part(2, part(1, varint(1, element) + part(2, shape)))
    node = part(1, b"x") + part(2, b"y") + part(4, b"Identity")
    graph = part(1, node) + part(2, b"identity") + part(11, value(b"x")) + part(12, value(b"y"))
    return varint(1, 8) + part(8, varint(2, 17)) + part(7, graph)


# Models that return an image or a sound unchanged: the datatype's number in ONNX, and the shape.
IDENTITIES = {"colours": (1, ["n", 3, SIDE, SIDE]), "photo": (2, [1, SIDE, SIDE, 3]), "sound": (1, ["n"])}


def write_identities(folder):
    for name, (element, dims) in IDENTITIES.items():
        place = folder / name / "1"
        place.mkdir(parents=True)
        (place / "model.onnx").write_bytes(identity(element, dims))


def write_words(rust, folder):
    """Writes a text model: `one` maps to [3, 0], `two` to [0, 4], and vectors are normalized to length 1."""
    shutil.copytree(rust.parents[3] / "oip-text/tests/fixtures/words", folder / "words" / "1")


class Console:
    def __init__(self, page, url, shots, tensor, rust):
        self.page, self.url, self.shots, self.tensor, self.rust, self.count = page, url, shots, tensor, rust, 0

    def shot(self, name):
        self.count += 1
        self.page.screenshot(path=self.shots / f"{self.count:02}-{name}.png", full_page=True)

    def open(self, path):
        self.page.goto(f"{self.url}/{path}")

    def run(self):
        """Presses Run, and returns the server's response to the page."""
        with self.page.expect_response(lambda answer: answer.url.endswith("/infer")) as answer:
            self.page.get_by_role("button", name="Run", exact=True).click()
        return answer.value


def overview(console):
    page = console.page
    console.open("")
    expect(page.locator("#ready")).to_have_text("ready")
    expect(page.locator("#version")).to_have_text("0.1.0")
    for model in ["digits", "digits_forest", "digit_means", "digit_portrait"]:
        expect(page.get_by_role("row", name=model).first).to_contain_text("READY")
    expect(page.get_by_role("row", name="digits").first).to_contain_text(re.compile(r"[0-9] ([KMG]i)?B"))
    for label in ["requests/s", "p50", "p99", "failures/s", "waiting", "memory for requests", "processors in use"]:
        expect(page.locator(".tile .label", has_text=label).first).to_be_visible()
    console.shot("models")


def a_model(console):
    page = console.page
    page.get_by_role("link", name="digits", exact=True).click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    expect(page.locator(".tile .label", has_text="memory, about")).to_be_visible()
    # The page fills the form with the model's own example, a handwritten 7, which can be sent unchanged.
    answer = console.run().json()
    assert next(output for output in answer["outputs"] if output["name"] == "label")["data"] == [7], answer
    for view in ["Bars", "Table", "JSON"]:
        page.get_by_role("tab", name=view, exact=True).last.click()
        expect(page.get_by_role("tab", name=view, exact=True).last).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Bars", exact=True).last.click()
    console.shot("answer")
    # Move from one tab to the next by keyboard.
    page.get_by_role("tab", name="Bars", exact=True).last.press("ArrowRight")
    expect(page.get_by_role("tab", name="Table", exact=True).last).to_be_focused()

    # The shape field, and the Fill button.
    page.locator("#shape-0").fill("3, 64")
    page.get_by_role("button", name="Fill").click()
    answer = console.run().json()
    assert answer["outputs"][0]["shape"] == [3], answer
    assert next(output for output in answer["outputs"] if output["name"] == "label")["data"] == [7, 7, 7], answer
    # The page rejects data that does not match, with a message.
    page.locator("#data-0").fill("[1, 2, 3]")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("takes 192 values, the data has 3")
    page.locator("#shape-0").fill("one")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("list of integers")
    console.shot("refused")


def files(console, folder):
    page = console.page
    request = json.loads((folder / "one_digit.json").read_text())
    pixels = request["inputs"][0]["data"]
    csv = folder / "digit.csv"
    csv.write_text(",".join(map(str, pixels)) + "\n")
    plain = folder / "digit_list.json"
    plain.write_text(json.dumps(pixels))
    console.open("#/models/digits/1")
    for file in [folder / "one_digit.json", csv, plain]:
        page.get_by_label("file for X").set_input_files(file)
        expect(page.get_by_text(file.name)).to_be_visible()
        answer = console.run().json()
        label = next(output for output in answer["outputs"] if output["name"] == "label")
        assert label["data"] == [7], (file, answer)
    wrong = folder / "wrong.json"
    wrong.write_text("{")
    page.get_by_label("file for X").set_input_files(wrong)
    expect(page.locator("fieldset p.bad")).to_be_visible()
    # A pipeline: its steps are boxes that link to their models, with an arrow for each tensor between them.
    console.open("#/models/digit_portrait/1")
    page.get_by_label("file for X").set_input_files(folder / "one_digit.json")
    assert console.run().status == 200
    page.get_by_role("tab", name="JSON", exact=True).last.click()
    expect(page.get_by_role("heading", name="Pipeline")).to_be_visible()
    steps = page.evaluate("fetch('/v2/models/digit_portrait/config').then((answer) => answer.json())")["ensemble_scheduling"]["step"]
    boxes = page.locator("svg.graph a")
    expect(boxes).to_have_count(len(steps))
    assert sorted(boxes.locator("text").all_text_contents()) == sorted(step["model_name"] for step in steps)
    tensors = len(steps) + 1
    assert page.locator("svg.graph path.edge").count() >= tensors, "an arrow is missing"
    console.shot("pipeline")
    boxes.first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(steps[0]["model_name"])
    # Tests a model that is a tensor file: selects rows, and leaves out an input.
    console.open("#/models/digit_means/1")
    page.locator("#shape-0").fill("2")
    page.locator("#data-0").fill("[3, 8]")
    answer = console.run().json()
    assert [len(output["data"]) for output in answer["outputs"]][0] == 128, answer
    page.locator("#used-1").check()
    page.locator("#data-1").fill("[0]")
    assert console.run().status == 200
    console.shot("rows")
    page.locator("#used-1").uncheck()
    page.locator("#data-0").fill("[3, 99]")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("99")


RANGES = {
    "0 to 1": lambda value, channel: value / 255,
    "0 to 255": lambda value, channel: value,
    "-1 to 1": lambda value, channel: value / 127.5 - 1,
    "ImageNet mean and deviation": lambda value, channel: (value / 255 - [0.485, 0.456, 0.406][channel]) / [0.229, 0.224, 0.225][channel],
}


def media(console, folder):
    """Tests images and sounds as files, each range of pixel values, the sample rate, and showing a response as a picture."""
    page = console.page
    image = folder / "squares.png"
    image.write_bytes(png())
    console.open("#/models/colours/1")
    pixels = page.get_by_label("range of pixels")
    expect(pixels.locator("option")).to_have_text(list(RANGES))
    page.get_by_label("file for x").set_input_files(image)
    expect(page.get_by_text(f"{image.name}, ")).to_be_visible()
    for name, scaled in RANGES.items():
        # A new range also applies to the file that was chosen before.
        before = page.locator("#data-0").input_value()
        if name != pixels.input_value():
            pixels.select_option(name)
            expect(page.locator("#data-0")).not_to_have_value(before)
        answer = console.run().json()["outputs"][0]
        assert answer["shape"] == [1, 3, SIDE, SIDE], answer["shape"]
        for row, column in [(0, 0), (0, SIDE - 1), (SIDE - 1, 0), (SIDE - 1, SIDE - 1)]:
            for channel in range(3):
                found = answer["data"][(channel * SIDE + row) * SIDE + column]
                expected = scaled(colour(row, column)[channel], channel)
                assert math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-5), (name, row, column, channel, found, expected)
    page.get_by_role("tab", name="Picture", exact=True).click()
    picture = page.locator("canvas.picture")
    expect(picture).to_be_visible()
    assert picture.evaluate("(canvas) => [canvas.width, canvas.height]") == [SIDE, SIDE]
    console.shot("picture")
    # Integers, with the channels last: each pixel of the shown picture has the colour of the file's pixel.
    console.open("#/models/photo/1")
    page.get_by_label("file for x").set_input_files(image)
    expect(page.get_by_text(f"{image.name}, ")).to_be_visible()
    answer = console.run().json()["outputs"][0]
    assert answer["data"] == [value for row in range(SIDE) for column in range(SIDE) for value in colour(row, column)]
    page.get_by_role("tab", name="Picture", exact=True).click()
    shown = page.locator("canvas.picture").evaluate("(canvas) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]")
    assert shown == [value for row in range(SIDE) for column in range(SIDE) for value in (*colour(row, column), 255)]
    page.get_by_label("file for x").set_input_files(folder / "wrong.json")
    expect(page.locator("fieldset p.bad")).to_be_visible()

    # Sends a second of sound at 16 kHz, unchanged and at half the sample rate.
    sound = folder / "tone.wav"
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"".join(struct.pack("<h", round(16_384 * math.sin(2 * math.pi * 440 * i / 16_000))) for i in range(16_000)))
    console.open("#/models/sound/1")
    page.get_by_label("file for x").set_input_files(sound)
    for rate, least in [(16_000, 0.49), (8_000, 0.45)]:
        page.get_by_label("samples per second").fill(str(rate))
        page.get_by_label("samples per second").blur()
        expect(page.locator("#shape-0")).to_have_value(str(rate))
        answer = console.run().json()["outputs"][0]
        assert answer["shape"] == [rate], answer["shape"]
        assert least < max(answer["data"]) < 0.51 and -0.51 < min(answer["data"]) < -least, (max(answer["data"]), min(answer["data"]))
    console.shot("sound")
    # Chooses a file that has the extension of a sound but other content.
    noise = folder / "noise.wav"
    noise.write_bytes(b"RIFF")
    page.get_by_label("file for x").set_input_files(noise)
    expect(page.locator("fieldset p.bad")).to_contain_text("is not a sound that this browser can read")


def shell(command, tensor, **more):
    """Runs the page's shell command in a shell where `tensor` is the program that was built."""
    folder = str(pathlib.Path(tensor).resolve().parent)
    environment = {**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"], **more}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=environment).stdout


def snippet(console, language):
    console.page.get_by_role("tab", name=language, exact=True).click()
    return console.page.get_by_role("tabpanel").last.locator("pre").inner_text()


# A request with every datatype, for which the page's Rust code is compared with a test that compiles it.
EVERYTHING = {"inputs": [
    {"name": "bool", "datatype": "BOOL", "shape": [2], "data": [True, False]},
    {"name": "uint8", "datatype": "UINT8", "shape": [1, 2], "data": [0, 255]},
    {"name": "uint64", "datatype": "UINT64", "shape": [1], "data": ["18446744073709551615"]},
    {"name": "int8", "datatype": "INT8", "shape": [1], "data": [-128]},
    {"name": "int64", "datatype": "INT64", "shape": [1], "data": [-9007199254740991]},
    {"name": "fp16", "datatype": "FP16", "shape": [2], "data": [1, 0.5]},
    {"name": "bf16", "datatype": "BF16", "shape": [1], "data": [-2]},
    {"name": "fp32", "datatype": "FP32", "shape": [2, 2], "data": [0, 0.1, "NaN", "-Infinity"]},
    {"name": "fp64", "datatype": "FP64", "shape": [2], "data": [1e-300, 1e21]},
    {"name": "scalar", "datatype": "INT32", "shape": [], "data": [7]},
    {"name": "text \"x\"", "datatype": "BYTES", "shape": [3], "data": ["true", "it's", "\f\u0001\n\"\\ü"]},
]}


def code(console):
    page = console.page
    console.open("#/models/digits/1")
    shown = {}
    for language, text in [("curl", "curl -s"), ("Python", "tensorferry.Client"), ("tritonclient", "InferInput"), ("tensor", "tensor infer"), ("Rust", "oip_client")]:
        shown[language] = snippet(console, language)
        assert text in shown[language], shown[language]
        page.get_by_role("button", name="Copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == shown[language]
    # The commands on the page work in a shell and in Python.
    answer = json.loads(shell(shown["curl"], console.tensor))
    label = next(output for output in answer["outputs"] if output["name"] == "label")
    printed = shell(shown["tensor"], console.tensor)
    assert re.search(rf"^label\b.*\b{label['data'][0]}\b", printed, re.M | re.S), printed
    printed = subprocess.run([sys.executable, "-c", shown["tritonclient"]], capture_output=True, text=True, check=True).stdout
    assert f"label {label['data']}" in printed, printed
    # If the server has a certificate, lines explain how to trust it, like the server's own output.
    secure = "async (request) => Object.fromEntries((await import('/console/snippets.js')).snippets('any', '1', request, false, new URL('https://models.example.com')))"
    texts = page.evaluate(secure, EVERYTHING)
    for language, option in [("curl", "--cacert FILE"), ("tensor", "--ca FILE"), ("Python", "authorities"), ("tritonclient", "ca_certs")]:
        first = next(line for line in texts[language].splitlines() if "trust" in line)
        assert first.startswith("#") and option in first, texts[language]
        assert "https://models.example.com" in texts[language] or "ssl=True" in texts[language], texts[language]
    assert all("trust" not in text for text in shown.values()), shown
    # A test compiles the Rust code; here the page's code is compared with the test.
    make = "async ([request, hasToken]) => Object.fromEntries((await import('/console/snippets.js')).snippets('any', '1', request, hasToken))"
    page_code = page.evaluate(make, [EVERYTHING, True])
    plain = lambda text: [line.strip() for line in text.strip().splitlines()]
    begin, end = "// Begin of the code from the console.\n", "// End of the code from the console.\n"
    compiled = console.rust.read_text().split(begin)[1].split(end)[0]
    made = page_code["Rust"].replace(console.url, "http://127.0.0.1:8080")
    assert plain(made) == plain(compiled), f"{console.rust} has another text than the page:\n{made}"
    # In Python, strings and booleans keep their values.
    for language in ["Python", "tritonclient"]:
        compile(page_code[language], "snippet", "exec")
        for wanted in ['["true", "it\'s", ', "[True, False]", 'os.environ["TOKEN"]']:
            assert wanted in page_code[language], page_code[language]
    page.get_by_text("Configuration", exact=True).click()
    expect(page.locator("details pre")).to_contain_text("max_batch_size")
    console.shot("about")
    # The runtime of the model, how it is batched, and its inputs and outputs.
    rows = lambda heading: page.locator("h2", has_text=re.compile(f"^{heading}$")).locator("xpath=following::table[1]").locator("tbody tr")
    facts = dict(row.split("\t") for row in rows("About").all_inner_texts())
    assert facts["backend"] == "onnx" and facts["runtime"] in ("built-in", "onnxruntime"), facts
    assert facts["batches"] == "up to 64 rows" and facts["batched"] == "proven"
    assert facts["versions"] == "1", facts
    assert rows("Inputs").all_inner_texts() == ["X\tFP32\t[-1, 64]"]
    assert rows("Outputs").all_inner_texts() == ["label\tINT64\t[-1]", "probabilities\tFP32\t[-1, 10]"]


# A model whose program declares one input optional, and a file that is not a model.
LEAVES_OUT = """
class Model:
    inputs = {"x": ("FP32", [2]), "plus": {"datatype": "FP32", "shape": [2], "optional": True}}
    outputs = {"y": ("FP32", [2])}

    def infer(self, x, plus=None):
        return x if plus is None else x + plus
"""


def write_others(folder):
    (folder / "checkpoint" / "1").mkdir(parents=True)
    (folder / "checkpoint" / "1" / "model.safetensors").write_bytes(checkpoint(104))
    for name, file, content in [("leaves_out", "model.py", LEAVES_OUT), ("broken", "model.onnx", "not protobuf")]:
        place = folder / name / "1"
        place.mkdir(parents=True)
        (place / file).write_text(content)


def checkpoint(count):
    """Returns a safetensors file with `count` matrices."""
    entries = {f"layer.{i}.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * i, 16 * i + 16]} for i in range(count)}
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + bytes(16 * count)


def many_tensors(console):
    """Tests a checkpoint of 104 tensors: the page shows one field, and finds the others by name."""
    page = console.page
    console.open("#/models/checkpoint/1")
    expect(page.locator("fieldset")).to_have_count(1)
    page.locator("#data-0").fill("[1]")
    page.locator("#shape-0").fill("1")
    assert console.run().status == 200
    console.shot("checkpoint")
    fits_a_phone(console, "checkpoint")
    page.get_by_label("input to add").select_option(index=3)
    page.get_by_role("button", name="Add").click()
    expect(page.locator("fieldset")).to_have_count(2)
    assert console.run().status == 200


def others(console):
    """Tests a model that failed to load, with the reason, and an optional input."""
    page = console.page
    console.open("")
    row = page.get_by_role("row", name="broken").first
    expect(row).to_contain_text("UNAVAILABLE")
    expect(page.locator(".reason")).to_contain_text("the file is text that begins with")
    console.shot("failed")
    fits_a_phone(console, "failed")
    console.open("#/models/broken/1")
    expect(page.locator("main")).to_contain_text("the file is text that begins with")
    console.open("#/models/leaves_out/1")
    expect(page.locator("#used-0")).to_have_count(0)
    page.locator("#data-0").fill("[1, 2]")
    page.locator("#data-1").fill("[10, 20]")
    expect(page.locator("#used-1")).to_be_checked()
    assert console.run().json()["outputs"][0]["data"] == [11, 22]
    page.locator("#used-1").uncheck()
    answer = console.run()
    assert [one["name"] for one in answer.request.post_data_json["inputs"]] == ["x"]
    assert answer.json()["outputs"][0]["data"] == [1, 2]


def control(console):
    page = console.page
    console.open("#/models/digits_forest/1")
    page.get_by_role("button", name="Unload").click()
    expect(page.get_by_text("unloaded", exact=True).first).to_be_visible()
    expect(page.locator("main")).to_contain_text("UNAVAILABLE", timeout=PATIENCE)
    console.shot("unloaded")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text("loaded", exact=True).first).to_be_visible(timeout=60_000)
    expect(page.locator("main")).to_contain_text("READY", timeout=PATIENCE)


def fixed(console):
    """Tests a server that does not load models by request: the page says so beforehand."""
    page = console.page
    console.open("#/models/leaves_out/1")
    expect(page.get_by_text("needs --model-control-mode explicit")).to_be_visible()
    for name in ["Load", "Unload"]:
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    console.shot("fixed")


def log(console):
    page = console.page
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.locator("ol.log li").first).to_be_visible(timeout=PATIENCE)
    for level in ["errors", "warnings", "debug", "trace", "info"]:
        with page.expect_response(lambda answer: answer.url.endswith("/v2/logging") and answer.request.method == "POST") as answer:
            page.get_by_label("What is logged:").select_option(level)
        assert answer.value.status == 200, level
        expect(page.get_by_label("What is logged:")).to_have_value(level)
    expect(page.locator("ol.log")).to_contain_text("settings are changed by request", timeout=PATIENCE)
    console.shot("log")


def looks(console, browser):
    """Tests dark mode and the width of a phone: nothing is wider than the screen."""
    for name, options in [
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}}),
        ("phone", {"viewport": {"width": 375, "height": 740}, "is_mobile": True}),
    ]:
        context = browser.new_context(**options)
        page = context.new_page()
        for place in ["#/", "#/models/digits/1", "#/models/digit_portrait/1", "#/log", "#/metrics", "docs"]:
            page.goto(f"{console.url}/{place}")
            page.wait_for_timeout(500)
            if place == "docs":
                expect(page.locator("body")).to_contain_text("/v2/models/digits")
            bright = page.evaluate("getComputedStyle(document.body).color.match(/[0-9]+/g).slice(0, 3).every((part) => part > 127)")
            assert bright == (name == "dark"), f"{name} {place}: the text is {'bright' if bright else 'dark'}"
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{name} {place}: {wide} pixels too wide"
            # The pages of the log, the metrics and /docs may be long.
            wrong = heights(page, 8 if place not in ("#/log", "#/metrics", "docs") else math.inf)
            assert not wrong, (name, place, wrong)
            page.screenshot(path=console.shots / f"{name}-{place.strip('#/').replace('/', '-') or 'models'}.png", full_page=True)
        context.close()


def keyboard(console):
    """Tests that Tab reaches every control, beginning with the link that skips the header."""
    page = console.page
    console.open("#/models/digits/1")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Unload")).to_be_enabled()
    reached = []
    page.locator("body").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText || document.activeElement.id || document.activeElement.tagName"))
    for wanted in ["Skip to the content", "Log", "Load", "Unload", "shape-0", "Fill", "data-0", "Run"]:
        assert wanted in reached, (wanted, reached)
    # Controls also work by keyboard.
    page.locator("#data-0").focus()
    while page.evaluate("document.activeElement.innerText") != "Run":
        page.keyboard.press("Tab")
    with page.expect_response(lambda answer: answer.url.endswith("/infer")) as answer:
        page.keyboard.press("Enter")
    assert answer.value.status == 200


def texts(console):
    """Tests the text box of a text model, which has one text per line."""
    page = console.page
    console.open("#/models/words/1")
    box = page.get_by_label("texts for text", exact=True)
    expect(box).to_have_value("A cat sat on the mat.")
    expect(page.get_by_label("texts for text_pair")).to_be_visible()
    box.fill("one two\n[two]\n")
    expect(page.locator("fieldset").first).to_contain_text("2 texts")
    answer = console.run()
    sent = answer.request.post_data_json["inputs"]
    assert sent == [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["one two", "[two]"]}], sent
    found = next(output for output in answer.json()["outputs"] if output["name"] == "embedding")
    assert found["shape"] == [2, 2] and all(abs(one - other) < 1e-6 for one, other in zip(found["data"][:2], [0.6, 0.8])), found
    console.shot("texts")
    fits_a_phone(console, "texts")
    # The whole box as one text, with its line breaks; and a second text, which is sent only if it is not empty.
    page.get_by_label("what is a text of text", exact=True).select_option(index=1)
    expect(page.locator("fieldset").first).to_contain_text("1 text")
    page.get_by_label("texts for text_pair").fill("one")
    sent = console.run().request.post_data_json["inputs"]
    assert [(one["name"], one["data"]) for one in sent] == [("text", ["one two\n[two]\n"]), ("text_pair", ["one"])], sent
    page.locator("#used-1").uncheck()
    assert len(console.run().request.post_data_json["inputs"]) == 1
    # Chooses a file with one text per line.
    file = console.shots / "texts.txt"
    file.write_text("one\ntwo\n")
    page.get_by_label("what is a text of text", exact=True).select_option(index=0)
    page.get_by_label("file for text", exact=True).set_input_files(file)
    expect(page.locator("fieldset").first).to_contain_text("2 texts of texts.txt")
    assert console.run().json()["outputs"][0]["data"] == [1, 0, 0, 1]
    file.unlink()
    # On the API page, the box writes into the request body.
    console.open("docs")
    box = page.locator("#embeddings")
    box.locator("summary").first.click()
    expect(box.get_by_label("body")).to_have_value(re.compile('"model": "words"'))
    box.get_by_label("input, a text on each line").fill("one\ntwo \"quoted\"")
    assert json.loads(box.get_by_label("body").input_value())["input"] == ["one", 'two "quoted"']
    box.get_by_role("button", name="Send").click()
    expect(box.locator("pre").last).to_contain_text("200 OK in", timeout=PATIENCE)
    expect(box.locator("pre").last).to_contain_text('"index": 1')
    name = next(methods["post"]["operationId"] for path, methods in page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")["paths"].items() if path == "/v2/models/words/infer")
    box = page.locator(f"[id='{name}']")
    box.locator("summary").first.click()
    box.get_by_label("text, a text on each line").fill("one\ntwo\none")
    body = json.loads(box.get_by_label("body").input_value())
    assert body["inputs"][0]["shape"] == [3] and body["inputs"][0]["data"] == ["one", "two", "one"], body
    box.get_by_role("button", name="Send").click()
    expect(box.locator("pre").last).to_contain_text("200 OK in", timeout=PATIENCE)
    # While the body is not valid JSON the text box is hidden; it returns when the body is valid again.
    box.get_by_label("body").fill("{")
    expect(box.get_by_label("text, a text on each line")).to_have_count(0)
    box.get_by_label("body").fill(json.dumps(body))
    expect(box.get_by_label("text, a text on each line")).to_have_value("one\ntwo\none")
    console.open("")


def api(console):
    page = console.page
    page.get_by_role("link", name="API", exact=True).click()
    expect(page).to_have_url(f"{console.url}/docs")
    expect(page.locator("body")).to_contain_text("/v2/models")
    console.shot("api")
    # Each served model has its own path, first on the page, and its example works unchanged.
    description = page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")
    own = [operation for methods in description["paths"].values() for operation in methods.values() if operation["tags"][0].startswith("model ")]
    assert len(own) == 2 * (5 + len(IDENTITIES)), [operation["operationId"] for operation in own]
    for operation in own:
        send(console, operation["operationId"])
    console.shot("api-sent")
    # Operations for any model are filled in with a loaded model.
    for name in ["serverMetadata", "listModels", "modelMetadata", "modelVersionMetadata", "modelReady", "infer", "inferVersion", "generate", "generateStream", "predict", "modelConfig", "modelStatistics", "repositoryIndex", "logSettings", "changeLogSettings"]:
        send(console, name)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"/docs: {wide} pixels too wide"


def send(console, operation):
    """Opens an operation on the API page, sends it unchanged, and expects success."""
    box = console.page.locator(f"[id='{operation}']")
    box.locator("summary").first.click()
    box.get_by_role("button", name="Send").click()
    expect(box.locator("pre").last).to_contain_text("200 OK in", timeout=PATIENCE)


def metrics(console):
    page = console.page
    console.open("")
    page.get_by_role("link", name="Metrics", exact=True).click()
    expect(page.locator("pre.whole")).to_contain_text("nv_inference_request_success{")


# Identities of the second server. The reader may see neither states (repository) nor numbers (metrics).
TABLE = """
[identities.reader]
token-sha256 = ["{reader}"]
apis = ["health", "metadata", "inference"]

[identities.operator]
token-sha256 = ["{operator}"]
apis = ["*"]
"""


def tokens(console):
    """Tests the console and /docs on a server that requires a token."""
    page = console.page
    console.open("")
    # Everybody can load the page, without data, and it shows the server's message.
    expect(page.get_by_role("alert")).to_contain_text("The models are not listed: expected a header 'authorization: Bearer TOKEN'")
    expect(page.locator(".tiles")).to_contain_text("No numbers: expected a header")
    expect(page.locator("#ready")).to_have_text("readiness not shown")
    field = page.get_by_label("Token", exact=True)
    expect(field).to_be_visible()
    assert field.get_attribute("type") == "password"
    expect(page.get_by_role("button", name="Forget")).to_be_hidden()
    console.shot("no-token")
    fits_a_phone(console, "no-token")

    def use(token):
        field.fill(token)
        page.get_by_role("button", name="Use").click()
        expect(field).to_have_value("")

    use("wrong")
    expect(page.get_by_role("alert")).to_contain_text("the token is not known (HTTP 401)")
    field.fill("two words")
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#access-note")).to_contain_text("no spaces")

    # Names without states, no metrics, and no buttons for calls that would be refused; the model runs.
    use("reader-token")
    expect(page.get_by_role("row", name="digits").first).to_be_visible()
    expect(page.locator("main")).to_contain_text("Versions and states are not shown: identity 'reader' may not use the API 'model-repository' (HTTP 403)")
    expect(page.locator(".tiles")).to_contain_text("No numbers: identity 'reader' may not use the API 'metrics' (HTTP 403)")
    expect(page.locator("#ready")).to_have_text("ready")
    expect(page.locator("#version")).to_have_text("0.1.0")
    console.shot("reader")
    page.get_by_role("link", name="digits", exact=True).click()
    assert console.run().status == 200
    expect(page.get_by_role("button", name="Unload")).to_be_hidden()
    assert "reader-token" not in page.content()
    shown = snippet(console, "curl")
    assert '"Authorization: Bearer $TOKEN"' in shown, shown
    assert "outputs" in json.loads(shell(shown, console.tensor, TOKEN="reader-token")), shown
    shell(snippet(console, "tensor"), console.tensor, TOKEN="reader-token")
    python = snippet(console, "tritonclient")
    subprocess.run([sys.executable, "-c", python], capture_output=True, check=True, env={**os.environ, "TOKEN": "reader-token"})
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.locator("ol.log")).to_contain_text("identity 'reader' may not use the API 'logging'")
    page.get_by_role("link", name="Metrics", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("identity 'reader' may not use the API 'metrics'")

    # The API page uses the token that was entered in the console.
    page.get_by_role("link", name="API", exact=True).click()
    expect(page.locator("#access-note")).to_contain_text("This tab sends its token")
    send(console, "listModels")
    box = page.locator("[id='repositoryIndex']")
    box.locator("summary").first.click()
    box.get_by_role("button", name="Send").click()
    expect(box.locator("pre").last).to_contain_text("identity 'reader' may not use the API 'model-repository'")
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#about")).to_contain_text("expected a header 'authorization: Bearer TOKEN'")
    console.shot("api-no-token")
    fits_a_phone(console, "api-no-token")
    use("operator-token")
    expect(page.locator("#access-note")).to_contain_text("This tab sends its token")
    send(console, "repositoryIndex")

    # If everything is allowed, the page is the same as without a table, and loading and unloading work.
    console.open("")
    expect(page.get_by_role("row", name="digits_forest").first).to_contain_text("READY")
    expect(page.locator(".tile .label", has_text="processors in use")).to_be_visible()
    console.shot("operator")
    console.open("#/models/digits_forest/1")
    page.get_by_role("button", name="Unload").click()
    expect(page.get_by_text("unloaded", exact=True).first).to_be_visible()
    metrics(console)
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_role("alert")).to_contain_text("expected a header")
    console.open("")
    expect(page.get_by_role("alert")).to_contain_text("The models are not listed")
    assert page.evaluate("sessionStorage.length") == 0


def fits_a_phone(console, name):
    """Checks that the page is currently no wider than a phone's screen."""
    page = console.page
    before = page.viewport_size
    page.set_viewport_size({"width": 375, "height": 740})
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    page.screenshot(path=console.shots / f"phone-{name}.png", full_page=True)
    wrong = heights(page, 5)
    page.set_viewport_size(before)
    assert wide <= 0, f"{name}: {wide} pixels too wide"
    assert not wrong, (name, wrong)


def heights(page, screens):
    """Returns layout errors: a page longer than `screens` screens, a text column that is a few letters wide, a row of
    tiles with a gap."""
    return page.evaluate("""(screens) => {
        const wrong = [];
        const high = document.documentElement.scrollHeight;
        if (high > screens * innerHeight) wrong.push(`the page is ${high} pixels high`);
        for (const one of document.querySelectorAll("main td, main th, main p, main .reason")) {
            if (one.closest("details:not([open])")) continue;
            // The text, not the cell, which is as high as its row.
            const text = document.createRange();
            text.selectNodeContents(one);
            const box = text.getBoundingClientRect();
            if (box.height > 160 && box.width < 160) wrong.push(`${box.width} by ${box.height}: ${one.textContent.slice(0, 40)}`);
        }
        for (const row of document.querySelectorAll(".tiles")) {
            const boxes = [...row.querySelectorAll(".tile")].map((tile) => tile.getBoundingClientRect());
            if (boxes.length && row.getBoundingClientRect().right - boxes.at(-1).right > 2) wrong.push("the last row of tiles has a hole");
        }
        return wrong;
    }""", screens)


@contextlib.contextmanager
def serving(program, repositories, *more, mode="explicit"):
    """Starts a server with these repositories. Returns its URL once everything is loaded."""
    arguments = [
        program, "--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0", "--model-control-mode", mode,
        *(["--load-model", "*"] if mode == "explicit" else []), *more,
    ]
    for repository in repositories:
        arguments += ["--model-repository", repository]
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = None
        for line in server.stdout:
            if line.strip().startswith("HTTP"):
                url = line.split()[1]
            if " after " in line:
                break
        if url is None:
            sys.exit(f"{program} did not start: {' '.join(map(str, arguments))}")
        yield url
    finally:
        server.terminate()
        server.wait(20)


def main():
    parser = argparse.ArgumentParser()
    for name in ["server", "tensor", "chromium", "models", "rust", "shots"]:
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    options = parser.parse_args()
    shutil.rmtree(options.shots, ignore_errors=True)
    options.shots.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = pathlib.Path(folder)
        shutil.copy(options.models.parent / "requests/one_digit.json", folder)
        write_identities(folder / "identities")
        write_words(options.rust, folder / "identities")
        digest = lambda token: hashlib.sha256(token.encode()).hexdigest()
        table = folder / "auth.toml"
        table.write_text(TABLE.format(reader=digest("reader-token"), operator=digest("operator-token")))
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE)
        wrong = []

        def use(url, steps):
            context = browser.new_context(viewport={"width": 1200, "height": 800})
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
            page.on("request", lambda request: request.url.startswith((url, "data:", "blob:")) or wrong.append(f"asks {request.url}"))
            page.on("console", lambda message: "Content Security Policy" in message.text and wrong.append(message.text))
            console = Console(page, url, options.shots, options.tensor, options.rust)
            console.count = len(list(options.shots.iterdir()))
            for step, more in steps:
                step(console, *more)
                print(f"{step.__name__}: good", flush=True)
            context.close()

        with serving(options.server, [options.models, folder / "identities"]) as url:
            use(url, [
                (overview, []), (a_model, []), (files, [folder]), (media, [folder]), (code, []), (control, []), (log, []), (metrics, []),
                (keyboard, []), (texts, []), (api, []), (looks, [browser]),
            ])
        with serving(options.server, [options.models], "--auth", table) as url:
            use(url, [(tokens, [])])
        write_others(folder / "others")
        more = ["--allow-python", "--python", sys.executable, "--strict-readiness=false"]
        with serving(options.server, [folder / "others"], *more, mode="none") as url:
            use(url, [(others, []), (many_tensors, []), (fixed, [])])
        browser.close()
        if wrong:
            sys.exit("\n".join(wrong))


main()
