"""Uses every control of the console in Chromium, as a person would, and photographs each page.

    python console.py --server PROGRAM --chromium PROGRAM --models FOLDER --shots FOLDER

Fails when a control does not do what it should, when the page reports an error, or when it asks another host for anything.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from playwright.sync_api import expect, sync_playwright

PATIENCE = 15_000


class Console:
    def __init__(self, page, url, shots):
        self.page, self.url, self.shots, self.count = page, url, shots, 0

    def shot(self, name):
        self.count += 1
        self.page.screenshot(path=self.shots / f"{self.count:02}-{name}.png", full_page=True)

    def open(self, path):
        self.page.goto(f"{self.url}/{path}")

    def run(self):
        """Presses Run, and returns the answer that the page got."""
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
    # The example that the form is filled with is answered as it stands.
    assert console.run().status == 200
    for view in ["Bars", "Table", "JSON"]:
        page.get_by_role("tab", name=view, exact=True).last.click()
        expect(page.get_by_role("tab", name=view, exact=True).last).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Bars", exact=True).last.click()
    console.shot("answer")
    # By keyboard: from one tab to the next.
    page.get_by_role("tab", name="Bars", exact=True).last.press("ArrowRight")
    expect(page.get_by_role("tab", name="Table", exact=True).last).to_be_focused()

    # The shape, and Fill.
    page.locator("#shape-0").fill("3, 64")
    page.get_by_role("button", name="Fill").click()
    answer = console.run().json()
    assert answer["outputs"][0]["shape"] == [3], answer
    # Data that does not fit is refused by the page, in words.
    page.locator("#data-0").fill("[1, 2, 3]")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("takes 192 values, the data has 3")
    page.locator("#shape-0").fill("one")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("list of whole numbers")
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
    # The image that a pipeline answers with is shown as one.
    console.open("#/models/digit_portrait/1")
    page.get_by_label("file for X").set_input_files(folder / "one_digit.json")
    assert console.run().status == 200
    page.get_by_role("tab", name="JSON", exact=True).last.click()
    expect(page.get_by_role("heading", name="Pipeline")).to_be_visible()
    expect(page.locator("svg").first).to_be_visible()
    console.shot("pipeline")
    # A tensor file: rows, and leaving an input out.
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


def code(console):
    page = console.page
    console.open("#/models/digits/1")
    for language, text in [("curl", "curl -s"), ("Python", "InferInput"), ("tensor", "tensor infer"), ("Rust", "oip_client")]:
        page.get_by_role("tab", name=language, exact=True).click()
        expect(page.get_by_role("tabpanel").last).to_contain_text(text)
        page.get_by_role("button", name="Copy").click()
        assert text in page.evaluate("navigator.clipboard.readText()")
    # What is shown for a shell runs in one.
    page.get_by_role("tab", name="curl", exact=True).click()
    command = page.get_by_role("tabpanel").last.locator("pre")
    answer = subprocess.run(["bash", "-c", command.inner_text()], capture_output=True, text=True, check=True)
    assert "outputs" in json.loads(answer.stdout), answer.stdout
    page.get_by_text("Configuration", exact=True).click()
    expect(page.locator("details pre")).to_contain_text("max_batch_size")
    console.shot("about")


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
    """Dark, and as wide as a phone: nothing is wider than the screen."""
    for name, options in [
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}}),
        ("phone", {"viewport": {"width": 375, "height": 740}, "is_mobile": True}),
    ]:
        context = browser.new_context(**options)
        page = context.new_page()
        for place in ["#/", "#/models/digits/1", "#/log"]:
            page.goto(f"{console.url}/{place}")
            page.wait_for_timeout(500)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{name} {place}: {wide} pixels too wide"
            page.screenshot(path=console.shots / f"{name}-{place.strip('#/').replace('/', '-') or 'models'}.png", full_page=True)
        context.close()


def keyboard(console):
    """Everything that can be pressed is reached by Tab, the link past the header first."""
    page = console.page
    console.open("#/models/digits/1")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    reached = []
    page.locator("body").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText || document.activeElement.id || document.activeElement.tagName"))
    for wanted in ["Skip to the content", "Log", "Load", "Unload", "shape-0", "Fill", "data-0", "Run"]:
        assert wanted in reached, (wanted, reached)


def api(console):
    page = console.page
    page.get_by_role("link", name="API", exact=True).click()
    expect(page).to_have_url(f"{console.url}/docs")
    expect(page.locator("body")).to_contain_text("/v2/models")
    console.shot("api")
    # Each model that is served has a path of its own, first on the page, and its example is answered as it stands.
    description = page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")
    own = [operation for methods in description["paths"].values() for operation in methods.values() if operation["tags"][0].startswith("model ")]
    assert len(own) == 8, [operation["operationId"] for operation in own]
    for operation in own:
        send(console, operation["operationId"])
    console.shot("api-sent")
    # What is there for any model is filled with one that is there.
    for name in ["serverMetadata", "listModels", "modelMetadata", "modelVersionMetadata", "modelReady", "infer", "inferVersion", "generate", "generateStream", "predict", "modelConfig", "modelStatistics", "repositoryIndex", "logSettings", "changeLogSettings"]:
        send(console, name)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"/docs: {wide} pixels too wide"


def send(console, operation):
    """Opens an operation on the page of the API, sends it as it stands, and expects that it succeeds."""
    box = console.page.locator(f"[id='{operation}']")
    box.locator("summary").first.click()
    box.get_by_role("button", name="Send").click()
    expect(box.locator("pre").last).to_contain_text("200 OK in", timeout=PATIENCE)


def main():
    parser = argparse.ArgumentParser()
    for name in ["server", "chromium", "models", "shots"]:
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    options = parser.parse_args()
    shutil.rmtree(options.shots, ignore_errors=True)
    options.shots.mkdir(parents=True)
    arguments = [
        options.server, options.models, "--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0",
        "--model-control-mode", "explicit", "--load-model", "*",
    ]
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = None
        for line in server.stdout:
            if line.strip().startswith("HTTP"):
                url = line.split()[1]
            if " after " in line:
                break
        with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
            folder = pathlib.Path(folder)
            shutil.copy(options.models.parent / "requests/one_digit.json", folder)
            browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": 1200, "height": 800})
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            expect.set_options(timeout=PATIENCE)
            wrong = []
            page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
            page.on("request", lambda request: request.url.startswith((url, "data:", "blob:")) or wrong.append(f"asks {request.url}"))
            page.on("console", lambda message: "Content Security Policy" in message.text and wrong.append(message.text))
            console = Console(page, url, options.shots)
            for step, more in [
                (overview, []), (a_model, []), (files, [folder]), (code, []), (control, []), (log, []), (keyboard, []), (api, []),
                (looks, [browser]),
            ]:
                step(console, *more)
                print(f"{step.__name__}: good", flush=True)
            browser.close()
            if wrong:
                sys.exit("\n".join(wrong))
    finally:
        server.terminate()
        server.wait(20)


main()
