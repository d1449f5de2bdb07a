"""The clients against the server of the wheel: asyncio, sockets, TLS, streams, and the names of Triton's client."""

import asyncio
import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import trustme

import tensorferry
import tensorferry.compat.tritonclient.grpc as grpcclient
import tensorferry.compat.tritonclient.grpc.aio as grpc_aio
import tensorferry.compat.tritonclient.http as httpclient
import tensorferry.compat.tritonclient.grpc.model_config_pb2
import tensorferry.compat.tritonclient.grpc.service_pb2
import tensorferry.compat.tritonclient.http.aio as http_aio
from tensorferry import AsyncClient, Client, InferenceError
from tensorferry.compat.tritonclient.http.auth import BasicAuth
from tensorferry.compat.tritonclient.utils import (
    InferenceServerException,
    deserialize_bf16_tensor,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_bf16_tensor,
    serialize_byte_tensor,
    shared_memory,
    triton_to_np_dtype,
)

EXAMPLES = Path(os.environ["TENSORFERRY_EXAMPLES"])


def serve(*options):
    """A server of the example models with both transports, on Unix sockets and on ports."""
    command = [sys.executable, "-m", "tensorferry", "serve", str(EXAMPLES / "models"), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found = {}
    for line in process.stdout:
        address = line.rsplit(" ", 1)[-1].strip().removeprefix("http://").removeprefix("https://")
        for name, said in (("http", "HTTP"), ("grpc", "gRPC")):
            if said in line and name not in found:
                found[name] = address
        if len(found) == 2 and " after " in line:
            break
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, found


def stop(process):
    process.terminate()
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def addresses():
    process, found = serve("--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0")
    yield found
    stop(process)


@pytest.fixture
def image():
    request = json.loads((EXAMPLES / "requests" / "one_digit.json").read_text())
    return np.array(request["inputs"][0]["data"], dtype=np.float32).reshape(1, 64)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_many_calls_await_at_once(addresses, image, transport):
    async def run():
        client = AsyncClient(f"{transport}://{addresses[transport]}")
        assert await client.is_live() and await client.is_ready() and await client.is_model_ready("digits")
        assert (await client.model("digits")).inputs[0].name == "X"
        assert "digits" in [model["name"] for model in await client.models()]
        assert (await client.config("digits"))["name"] == "digits"
        answers = await asyncio.gather(*(client.infer("digits", {"X": image}) for _ in range(100)))
        assert [answer["label"].item() for answer in answers] == [7] * 100
        assert (await client.statistics("digits"))[0]["inference_count"] >= 100
        response = await client.request("digits", {"X": image}, id="42", outputs=["label"])
        assert (response.id, list(response.outputs), response.model) == ("42", ["label"], "digits")
        with pytest.raises(InferenceError, match="'zz' does not exist") as error:
            await client.infer("zz", {"X": image})
        assert error.value.code == "NotFound"
        with pytest.raises(ValueError, match="model name"):
            await client.infer("", {"X": image})

    asyncio.run(run())


def test_the_lines_of_the_readme(addresses, tmp_path, monkeypatch, capsys):
    root = EXAMPLES.parents[2]
    (code,) = re.findall(r"^```python\n(.*?)^```", (root / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crates").symlink_to(root / "crates")
    exec(code.replace("127.0.0.1:8080", addresses["http"]), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and shown[-1] == "[7]"
    assert [tensor.dtype for tensor in tensorferry.safe_open("means.gguf").values()] == ["float16", "int64"]


def test_a_call_that_is_cancelled_ends_and_the_next_one_works(addresses, image):
    async def run():
        client = AsyncClient(f"http://{addresses['http']}")
        calls = [asyncio.ensure_future(client.infer("digits", {"X": image})) for _ in range(50)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
        assert all(outcome["label"].item() == 7 for outcome in outcomes[1::2])
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(AsyncClient(url).is_live(), 0.05)
        return await client.is_live()

    assert asyncio.run(run())


def test_a_loop_that_ends_before_its_calls(addresses, image):
    async def run():
        client = AsyncClient(f"grpc://{addresses['grpc']}")
        asyncio.ensure_future(client.infer("digits", {"X": image}))
        await asyncio.sleep(0)

    for _ in range(20):
        asyncio.run(run())


def test_timeouts_of_one_call(addresses, image):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = Client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(InferenceError, match="0.05 s") as error:
            waiting.infer("digits", {"X": image}, timeout=0.05)
    assert error.value.kind == "Timeout" and error.value.code == "DeadlineExceeded"
    client = Client(f"http://{addresses['http']}")
    with pytest.raises(ValueError, match="timeout"):
        client.infer("digits", {"X": image}, timeout=-1)
    assert client.infer("digits", {"X": image}, timeout=30)["label"].tolist() == [7]


def test_an_interrupt_ends_a_call():
    # Jobs in the background of a shell ignore the signal, and Python then leaves it so.
    code = "import signal, sys, tensorferry; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "print('calling', flush=True); tensorferry.Client(sys.argv[1]).is_live()"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-c", code, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "calling\n"
        # It is in the call once it has connected.
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        connection.close()
    assert "KeyboardInterrupt" in errors and process.returncode != 0


#: Three calls of which the last is answered byte by byte, into the memory of the answers before; an interrupt ends it.
INTERRUPTED = """
import signal, sys, tensorferry
signal.signal(signal.SIGINT, signal.default_int_handler)
client = tensorferry.Client(sys.argv[1], attempts=1)
for _ in range(2):
    assert client.infer("m", {})["y"].nbytes == 160_000
print("calling", flush=True)
client.infer("m", {})
"""


def test_a_large_answer_that_trickles_ends_with_its_time_and_with_an_interrupt():
    tensor = {"name": "y", "datatype": "UINT8", "shape": [160_000], "parameters": {"binary_data_size": 160_000}}
    head = json.dumps({"model_name": "m", "outputs": [tensor]}).encode()
    lines = [f"content-length: {len(head) + 160_000}", f"inference-header-content-length: {len(head)}"]
    answer = "\r\n".join(["HTTP/1.1 200 OK", "content-type: application/octet-stream", *lines, "", ""]).encode() + head

    def serve():
        connection = None
        while True:
            try:
                connection, _ = listening.accept()
                for number in range(3):
                    received = b""
                    while b"\r\n\r\n" not in received:
                        received += connection.recv(1 << 16)
                    left = int(received.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                    left -= len(received.partition(b"\r\n\r\n")[2])
                    while left:
                        left -= len(connection.recv(left))
                    connection.sendall(answer + b"1" * (160_000 if number < 2 else 1000))
                # 16 seconds, unless the client goes.
                for _ in range(1590):
                    connection.sendall(b"1" * 100)
                    time.sleep(0.01)
            except OSError:
                if listening.fileno() < 0:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = Client(url, attempts=1)
        for _ in range(2):
            assert client.infer("m", {})["y"].tolist() == [49] * 160_000
        start = time.monotonic()
        with pytest.raises(InferenceError) as error:
            client.infer("m", {}, timeout=0.5)
        assert error.value.kind == "Timeout" and time.monotonic() - start < 5
        client.close()

        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "calling\n"
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in errors and time.monotonic() - start < 5


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_sockets_of_this_machine(tmp_path, image, transport):
    http, grpc = tmp_path / "http.sock", tmp_path / "grpc.sock"
    process, _ = serve("--http-address", f"unix:{http}", "--grpc-address", f"unix:{grpc}")
    client = Client(f"{transport}+unix://{http if transport == 'http' else grpc}")
    assert client.infer("digits", {"X": image})["label"].tolist() == [7]
    assert Client(f"unix://{http}").infer("digits", {"X": image})["label"].tolist() == [7]
    stop(process)
    with pytest.raises(InferenceError) as error:
        Client(f"http+unix://{tmp_path / 'none.sock'}", attempts=1).is_live()
    assert error.value.kind == "Connect"
    with pytest.raises(InferenceError, match="absolute path"):
        Client("http+unix://relative.sock")


def test_encryption_and_certificates_of_clients(tmp_path, image):
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("localhost"), authority.issue_cert("client.example")
    for name, pem in {
        "ca.pem": authority.cert_pem,
        "server.key": ours.private_key_pem,
        "client.key": theirs.private_key_pem,
        "client.pem": theirs.cert_chain_pems[0],
        "server.pem": ours.cert_chain_pems[0],
        "other.pem": trustme.CA().cert_pem,
    }.items():
        pem.write_to_path(tmp_path / name)
    at = {name: str(tmp_path / name) for name in os.listdir(tmp_path)}
    tls = ["--tls-certificate", at["server.pem"], "--tls-key", at["server.key"], "--tls-client-ca", at["ca.pem"]]
    process, found = serve("--http-address", "localhost:0", "--grpc-address", "localhost:0", *tls)
    port = {name: address.rsplit(":", 1)[1] for name, address in found.items()}
    shown = {"certificate": at["client.pem"], "key": at["client.key"]}
    for url in (f"https://localhost:{port['http']}", f"grpcs://localhost:{port['grpc']}"):
        client = Client(url, authorities=at["ca.pem"], **shown)
        assert client.infer("digits", {"X": image})["label"].tolist() == [7]
        with pytest.raises(InferenceError, match="TLS|certificate"):
            Client(url, authorities=at["other.pem"], attempts=1, **shown).is_live()
        with pytest.raises(InferenceError):
            Client(url, authorities=at["ca.pem"], attempts=1).infer("digits", {"X": image})
    tensor = httpclient.InferInput("X", [1, 64], "FP32").set_data_from_numpy(image)
    options = {"ca_certs": at["ca.pem"], "certfile": at["client.pem"], "keyfile": at["client.key"]}
    http = httpclient.InferenceServerClient(f"localhost:{port['http']}", ssl=True, ssl_options=options)
    assert http.infer("digits", [tensor]).as_numpy("label").tolist() == [7]
    grpc = grpcclient.InferenceServerClient(
        f"localhost:{port['grpc']}", ssl=True, root_certificates=at["ca.pem"], private_key=at["client.key"],
        certificate_chain=at["client.pem"],
    )  # fmt: skip
    assert grpc.infer("digits", [tensor]).as_numpy("label").tolist() == [7]
    stop(process)
    with pytest.raises(ValueError, match="go together"):
        Client("https://localhost", certificate=at["client.pem"])
    with pytest.raises(FileNotFoundError):
        Client("https://localhost", authorities=at["ca.pem"] + "x")


def test_streams(addresses, image):
    client = Client(f"grpc://{addresses['grpc']}")
    with client.stream() as stream:
        for number in range(50):
            stream.send("digits", {"X": image}, id=str(number), outputs=["label"])
        stream.send("zz", {"X": image})
        stream.send("digits", {"X": image}, id="last")
        stream.finish()
        found = [next(stream) for _ in range(50)]
        with pytest.raises(InferenceError, match="'zz' does not exist"):
            next(stream)
        assert next(stream).id == "last"
        assert list(stream) == []
        with pytest.raises(InferenceError, match="takes no more requests"):
            stream.send("digits", {"X": image})
    assert [response.id for response in found] == [str(number) for number in range(50)]
    assert all(response.outputs["label"].tolist() == [7] for response in found)
    (only,) = client.infer_stream("digits", {"X": image})
    assert only["label"].tolist() == [7]

    async def run():
        waiting = AsyncClient(f"grpc://{addresses['grpc']}")
        return [outputs["label"].item() async for outputs in waiting.infer_stream("digits", {"X": image})]

    assert asyncio.run(run()) == [7]
    with pytest.raises(InferenceError):
        next(Client(f"http://{addresses['http']}").infer_stream("digits", {"X": image}))


def in_child(address, image, inherited, found):
    try:
        inherited.infer("digits", {"X": image})
    except RuntimeError as error:
        found.put(str(error))
    found.put(Client(f"http://{address}").infer("digits", {"X": image})["label"].item())


def test_a_forked_process_makes_its_own_client(addresses, image):
    client = Client(f"http://{addresses['http']}")
    assert client.is_live()
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=in_child, args=(addresses["http"], image, client, found))
    child.start()
    assert "before the process was forked" in found.get(timeout=30)
    assert found.get(timeout=30) == 7
    child.join(30)
    assert child.exitcode == 0


def wakes():
    """How often threads of this process that wait for connections were woken by others."""
    found = 0
    for file in Path("/proc/self/fdinfo").iterdir():
        try:
            found += sum(int(line.split()[1], 16) for line in file.read_text().splitlines() if line.startswith("eventfd-count:"))
        except OSError:
            pass
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the counts are Linux's")
@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_a_forked_process_that_drops_clients_leaves_the_threads_of_its_parent_alone(addresses, image, kind, transport):
    async def ask(clients):
        await asyncio.gather(*(client.infer("digits", {"X": image}) for client in clients))

    def use(clients):
        if kind is AsyncClient:
            asyncio.run(ask(clients))
        else:
            assert all([client.infer("digits", {"X": image})["label"] == [7] for client in clients])

    def settled():
        # A thread takes over what nobody has called for a while.
        gc.collect()
        time.sleep(0.5)
        return wakes()

    url = f"{transport}://{addresses[transport]}"
    clients = [kind(url), kind(url, headers={"a": "b"})]
    use(clients)
    before = settled()
    child = os.fork()
    if child == 0:
        # Waking them takes locks that they may have held when this process began.
        clients.clear()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert settled() == before
    use(clients)


def said(call):
    try:
        return repr(call())
    except RuntimeError as error:
        return str(error)


def with_a_stream_of_its_parent(stream, image, found):
    found.put([said(lambda: stream.send("digits", {"X": image})), said(stream.finish), said(lambda: next(stream)), said(stream.cancel)])

    async def run():
        waiting = tensorferry.AsyncStream(stream._native)
        await waiting.send("digits", {"X": image})

    found.put(said(lambda: asyncio.run(run())))


def test_a_stream_is_of_the_process_that_opened_it(addresses, image):
    with Client(f"grpc://{addresses['grpc']}").stream() as stream:
        stream.send("digits", {"X": image}, id="1")
        assert next(stream).id == "1"
        context = multiprocessing.get_context("fork")
        found = context.Queue()
        child = context.Process(target=with_a_stream_of_its_parent, args=(stream, image, found))
        child.start()
        # A stream that is left or dropped there is not this process's business.
        *uses, cancelled = found.get(timeout=30)
        uses.append(found.get(timeout=30))
        assert all("before the process was forked" in use for use in uses) and cancelled == "None", (uses, cancelled)
        child.join(30)
        assert child.exitcode == 0
        other = os.fork()
        if other == 0:
            del stream
            os._exit(0)
        assert os.waitpid(other, 0)[1] == 0
        stream.send("digits", {"X": image}, id="2")
        stream.finish()
        assert [response.id for response in stream] == ["2"]


#: An ordinary program: one awaited call, and its end.
AWAITS = """
import asyncio, sys
import numpy as np
from tensorferry import AsyncClient

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        assert (await client.infer("double", {"x": np.ones(2, np.float32)}))["y"].tolist() == [2, 2]

asyncio.run(main())
"""


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_program_that_has_awaited_a_call_ends_well(own, transport):
    url = own.http_url if transport == "http" else own.grpc_url
    for _ in range(10):
        ended = subprocess.run([sys.executable, "-c", AWAITS, url], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("module", [httpclient, grpcclient])
def test_the_names_of_tritons_client(addresses, image, module):
    address = addresses["http" if module is httpclient else "grpc"]
    with module.InferenceServerClient(url=address) as client:
        assert client.is_server_live() and client.is_model_ready("digits")
        tensor = module.InferInput("X", [1, 64], "FP32")
        tensor.set_data_from_numpy(image)
        result = client.infer("digits", [tensor], outputs=[module.InferRequestedOutput("label")], request_id="7")
        assert result.as_numpy("label").tolist() == [7] and result.as_numpy("other") is None
        assert client.infer("digits", [tensor], headers={"x-own": "1"}).as_numpy("label").tolist() == [7]
        with pytest.raises(InferenceServerException, match="'zz' does not exist") as error:
            client.infer("zz", [tensor])
        assert error.value.status() == ("404" if module is httpclient else "StatusCode.NOT_FOUND")
        with pytest.raises(InferenceServerException, match="expected FP32"):
            tensor.set_data_from_numpy(image.astype(np.float64))
        with pytest.raises(InferenceServerException, match="no data"):
            client.infer("digits", [module.InferInput("X", [1, 64], "FP32")])
    with pytest.raises(InferenceServerException, match="scheme"):
        module.InferenceServerClient(url=f"http://{address}")
    with pytest.raises(InferenceServerException):
        module.InferenceServerClient(url="127.0.0.1:9").infer("digits", [tensor])


def test_callbacks_may_make_calls(addresses, image):
    client = grpcclient.InferenceServerClient(addresses["grpc"])
    tensor = grpcclient.InferInput("X", [1, 64], "FP32").set_data_from_numpy(image)
    done = threading.Event()
    found = []

    def callback(result, error):
        found.append((client.infer("digits", [tensor]).as_numpy("label").item(), error))
        done.set()

    client.async_infer("digits", [tensor], callback)
    assert done.wait(20) and found == [(7, None)]
    ended = []
    context = client.async_infer("digits", [tensor], lambda result, error: ended.append((result, error)))
    context.cancel()
    for _ in range(200):
        if ended:
            break
        time.sleep(0.01)
    ((result, error),) = ended
    assert result is not None or error.status() == "StatusCode.CANCELLED"


def test_asynchronous_names_of_tritons_client(addresses, image):
    async def run(module, inputs, address):
        async with module.InferenceServerClient(address) as client:
            tensor = inputs.InferInput("X", [1, 64], "FP32").set_data_from_numpy(image)
            answers = await asyncio.gather(*(client.infer("digits", [tensor]) for _ in range(20)))
            return [answer.as_numpy("label").item() for answer in answers]

    assert asyncio.run(run(http_aio, httpclient, addresses["http"])) == [7] * 20
    assert asyncio.run(run(grpc_aio, grpcclient, addresses["grpc"])) == [7] * 20


def test_what_tritons_utils_have():
    texts = np.array([b"a", "größe".encode(), b""], dtype=np.object_)
    encoded = serialize_byte_tensor(texts).item()
    assert deserialize_bytes_tensor(encoded).tolist() == texts.tolist()
    with pytest.raises(InferenceServerException):
        deserialize_bytes_tensor(b"\xff\xff\xff\xff")
    assert np_to_triton_dtype(np.float32) == "FP32" and np_to_triton_dtype(np.object_) == "BYTES"
    assert triton_to_np_dtype("INT8") is np.int8 and triton_to_np_dtype("zz") is None


def test_wrong_uses_say_what():
    with pytest.raises(ValueError, match="gzip"):
        Client("http://localhost", compress="zip")
    with pytest.raises(ValueError, match="connect_timeout"):
        Client("http://localhost", connect_timeout=float("nan"))
    with pytest.raises(InferenceError, match="header"):
        Client("http://localhost", headers={"a b": "c"})
    for client in (Client, AsyncClient):
        with pytest.raises(TypeError, match="header 'a': expected str, found 4"):
            client("http://localhost", headers={"x": "y", "a": 4})
        with pytest.raises(TypeError, match="headers: expected names that are str, found 4"):
            client("http://localhost", headers={4: "a"})
    assert repr(AsyncClient("http://localhost")) == "AsyncClient('http://localhost')"
    assert tensorferry.InferenceError is InferenceError


def test_a_connection_that_the_server_has_closed_meanwhile_is_not_used_again():
    """Nobody reads from a client's connections between two calls, and an inference that was sent is not repeated."""
    body = json.dumps({"model_name": "m", "outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "data": [7]}]}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    listener = socket.create_server(("127.0.0.1", 0))
    connections = 0

    def answer_one_request_of_each_connection():
        nonlocal connections
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections += 1
            with connection:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(1 << 16)
                length = int(received.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(received.split(b"\r\n\r\n", 1)[1]) < length:
                    received += connection.recv(1 << 16)
                connection.sendall(head + body)

    threading.Thread(target=answer_one_request_of_each_connection, daemon=True).start()
    client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", attempts=1)
    for _ in range(20):
        assert client.infer("m", {"x": np.zeros(1, np.float32)})["y"].tolist() == [7]
        time.sleep(0.02)
    assert connections == 20
    listener.close()


def test_threads_that_share_a_client_wait_for_their_own_answers(addresses):
    client = Client("http://" + addresses["http"])
    grpc = Client("grpc://" + addresses["grpc"])
    images = np.random.default_rng(3).random((8, 64), dtype=np.float32)
    expected = [client.infer("digits", {"X": image[None]}) for image in images]
    wrong = []

    def ask(which):
        for turn in range(50):
            answer = (client, grpc)[turn % 2].infer("digits", {"X": images[which][None]})
            if any(not np.allclose(answer[key], expected[which][key], atol=1e-5) for key in expected[which]):
                wrong.append((which, turn))

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_clients_that_do_nothing_do_not_hold_up_a_server_that_stops(image):
    """Over HTTP/2 a server waits until its clients have heard that it closes; somebody must read that."""
    process, at = serve("--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0")
    clients = [Client(f"{name}://{at[name]}") for name in ("http", "grpc") for _ in range(3)]
    for pause in (0, 0.5):
        # At once after a call, and after callers have been away for a while.
        time.sleep(pause)
        assert all(client.infer("digits", {"X": image})["label"].tolist() == [7] for client in clients)
    start = time.monotonic()
    stop(process)
    assert time.monotonic() - start < 3
    for client in clients:
        with pytest.raises(InferenceError) as error:
            client.is_live()
        assert error.value.kind == "Connect"


class Scripted:
    """A server over HTTP/1.1 that answers each request by the next of its answers, the last of them again and again: a status and
    headers and a body, or None to break the connection off in the middle of an answer. It keeps what it was sent."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        received = b""
        with connection:
            while True:
                while b"\r\n\r\n" not in received:
                    more = connection.recv(1 << 16)
                    if not more:
                        return
                    received += more
                head, _, body = received.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                length = int(headers.get("content-length", 0))
                while len(body) < length:
                    body += connection.recv(1 << 16)
                received = body[length:]
                self.requests.append((first.rsplit(" ", 1)[0], headers, body[:length]))
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is None:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
                    return
                status, more_headers, content = answer
                content = json.dumps(content).encode()
                told = {"content-type": "application/json", "content-length": len(content), **more_headers}
                lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in told.items()), "", ""]
                connection.sendall("\r\n".join(lines).encode() + content)

    def close(self):
        self._listener.close()


SEVEN = {"model_name": "m", "outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "data": [7]}]}
BUSY = (503, {"retry-after": "0"}, {"error": "busy"})
METADATA = {"name": "m", "platform": "", "inputs": [], "outputs": []}


def test_calls_that_were_refused_for_now_are_repeated():
    server = Scripted(BUSY, (429, {}, {"error": "full"}), (200, {}, SEVEN))
    client = Client(f"http://{server.address}")
    assert client.infer("m", {"x": np.zeros(1, np.float32)})["y"].tolist() == [7]
    assert [request for request, _, _ in server.requests] == ["POST /v2/models/m/infer"] * 3
    # The same bytes each time.
    assert len({body for _, _, body in server.requests}) == 1
    for attempts, expected in ((1, 1), (2, 2)):
        server = Scripted((503, {"retry-after": "3" if attempts == 1 else "0"}, {"error": "busy"}))
        with pytest.raises(InferenceError) as error:
            Client(f"http://{server.address}", attempts=attempts).infer("m", {"x": np.zeros(1, np.float32)})
        found = error.value
        assert (found.kind, found.status, found.message, len(server.requests)) == ("Refused", "503", "busy", expected)
        assert found.retry_after == (3.0 if attempts == 1 else 0.0)
    server = Scripted((400, {}, {"error": "wrong"}))
    with pytest.raises(InferenceError, match="wrong"):
        Client(f"http://{server.address}").infer("m", {"x": np.zeros(1, np.float32)})
    # The others look for what was wrong.
    assert [line for line, *_ in server.requests if line.endswith("/infer")] == ["POST /v2/models/m/infer"]

    async def run():
        server = Scripted(BUSY, (200, {}, SEVEN))
        answer = await AsyncClient(f"http://{server.address}").infer("m", {"x": np.zeros(1, np.float32)})
        return answer["y"].tolist(), len(server.requests)

    assert asyncio.run(run()) == ([7], 2)


def test_an_inference_whose_response_broke_off_is_not_repeated_and_a_question_is():
    server = Scripted(None, (200, {}, SEVEN))
    with pytest.raises(InferenceError) as error:
        Client(f"http://{server.address}").infer("m", {"x": np.zeros(1, np.float32)})
    assert error.value.kind == "Broken" and len(server.requests) == 1
    server = Scripted(None, (200, {}, METADATA))
    assert Client(f"http://{server.address}").model("m").name == "m" and len(server.requests) == 2


def test_a_server_that_comes_up_late_is_found(image):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = []
    calling = threading.Thread(
        target=lambda: found.append(Client(f"http://127.0.0.1:{port}", attempts=50).infer("digits", {"X": image}))
    )
    calling.start()
    time.sleep(0.5)
    assert not found
    process, _ = serve("--http-address", f"127.0.0.1:{port}", "--grpc-address", "127.0.0.1:0")
    calling.join(60)
    stop(process)
    assert found[0]["label"].tolist() == [7]


def test_headers_arrive():
    server = Scripted((200, {}, SEVEN))
    headers = {"authorization": "Bearer t", "X-Own": "1"}
    client = Client(f"http://{server.address}", headers=headers)
    client.infer("m", {"x": np.zeros(1, np.float32)})
    client.is_ready()
    assert [(sent["authorization"], sent["x-own"]) for _, sent, _ in server.requests] == [("Bearer t", "1")] * 2
    compat = httpclient.InferenceServerClient(server.address)
    compat.register_plugin(BasicAuth("me", "secret"))
    tensor = httpclient.InferInput("x", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))
    compat.infer("m", [tensor], headers={"x-own": "2"})
    compat.is_server_live(headers={"x-own": "3"})
    compat.unregister_plugin()
    compat.is_server_live()
    seen = [(sent.get("authorization"), sent.get("x-own")) for _, sent, _ in server.requests[2:]]
    assert seen == [("Basic bWU6c2VjcmV0", "2"), ("Basic bWU6c2VjcmV0", "3"), (None, None)]


def test_texts_keep_zeros_at_their_end():
    text = {"model_name": "m", "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["ab\0"]}]}
    server = Scripted((200, {}, text))
    client = Client(f"http://{server.address}")
    for given in ([b"ab\0", b""], ("ab\0", ""), np.array([b"ab\0", b""], dtype=object), [["ab\0"], ["c\0"]]):
        assert client.infer("m", {"x": given})["y"].tolist() == [b"ab\0"]
        sent = server.requests[-1][2]
        assert b"\x03\0\0\0ab\0" in sent
    client.infer("m", {"x": b"ab\0"})
    assert b'"shape":[]' in server.requests[-1][2] and b"\x03\0\0\0ab\0" in server.requests[-1][2]


def test_calls_that_only_triton_answers_are_sent_as_it_reads_them():
    traces = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "10", "trace_file": ""}
    server = Scripted((200, {}, traces))
    client = httpclient.InferenceServerClient(server.address)
    assert client.get_trace_settings() == traces
    assert client.update_trace_settings("m", {"trace_rate": 5, "trace_level": ["OFF"], "trace_count": None}) == traces
    assert [request for request, _, _ in server.requests] == ["GET /v2/trace/setting", "POST /v2/models/m/trace/setting"]
    assert json.loads(server.requests[1][2]) == {"trace_rate": "5", "trace_level": ["OFF"], "trace_count": None}
    regions = [{"name": "r", "device_id": 1, "byte_size": 64}]
    server = Scripted((200, {}, regions))
    client = httpclient.InferenceServerClient(server.address)
    assert client.get_cuda_shared_memory_status("r") == regions
    client.register_cuda_shared_memory("r", b"AAECAw==", 1, 64)
    client.unregister_cuda_shared_memory()
    client.load_model("m", config="{}", files={"file:1/model.onnx": b"abc"})
    assert [request for request, _, _ in server.requests] == [
        "GET /v2/cudasharedmemory/region/r/status",
        "POST /v2/cudasharedmemory/region/r/register",
        "POST /v2/cudasharedmemory/unregister",
        "POST /v2/repository/models/m/load",
    ]
    bodies = [json.loads(body) for _, _, body in (server.requests[1], server.requests[3])]
    assert bodies[0] == {"raw_handle": {"b64": "AAECAw=="}, "device_id": 1, "byte_size": 64}
    assert bodies[1] == {"parameters": {"config": "{}", "file:1/model.onnx": "YWJj"}}
    with pytest.raises(InferenceServerException, match="file:1/model.onnx"):
        client.load_model("m", files={"1/model.onnx": b"abc"})


def test_a_closed_client_says_so(addresses, image):
    with Client(f"http://{addresses['http']}") as client:
        assert client.infer("digits", {"X": image})["label"].tolist() == [7]
    with pytest.raises(RuntimeError, match="is closed"):
        client.is_live()
    client.close()

    async def run():
        async with AsyncClient(f"grpc://{addresses['grpc']}") as waiting:
            assert await waiting.is_live()
        with pytest.raises(RuntimeError, match="is closed"):
            await waiting.is_live()

    asyncio.run(run())


def test_a_stream_that_takes_no_more_has_the_attributes_of_every_error(addresses, image):
    with Client(f"grpc://{addresses['grpc']}").stream() as stream:
        stream.finish()
        with pytest.raises(InferenceError) as error:
            stream.send("digits", {"X": image})
    assert (error.value.kind, error.value.code, error.value.status) == ("Usage", None, None)
    assert error.value.message == str(error.value) and error.value.retry_after is None


def test_a_stream_that_ends_says_why(own):
    inputs = {"count": np.array([2], np.int32)}
    for url, said in ((own.http_url, "the protocol has no streams over HTTP"), ("grpc://127.0.0.1:1", "connection refused")):
        client, waiting = Client(url, attempts=1), AsyncClient(url, attempts=1)

        def send():
            with client.stream() as stream:
                for _ in range(100):
                    stream.send("count", inputs)
                    time.sleep(0.01)

        async def wait():
            return [outputs async for outputs in waiting.infer_stream("count", inputs)]

        async def send_later():
            async with waiting.stream() as stream:
                await asyncio.sleep(0.2)
                await stream.send("count", inputs)

        for call in (lambda: list(client.infer_stream("count", inputs)), send, lambda: asyncio.run(wait()), lambda: asyncio.run(send_later())):
            for _ in range(5):
                with pytest.raises(InferenceError, match=said):
                    call()


def test_other_calls_of_tritons_names_have_time_limits_too():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{silent.getsockname()[1]}")
        for call in (
            lambda: client.is_server_live(client_timeout=0.1),
            lambda: client.get_model_metadata("m", client_timeout=0.1),
            lambda: client.get_system_shared_memory_status(client_timeout=0.1),
            lambda: client.load_model("m", client_timeout=0.1),
        ):
            start = time.monotonic()
            with pytest.raises(InferenceServerException) as error:
                call()
            assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED" and time.monotonic() - start < 5


def test_names_that_tritons_packages_have_as_well():
    for module in (httpclient, grpcclient, http_aio, grpc_aio):
        for name in ("InferenceServerClientPlugin", "Request", "np_to_triton_dtype", "raise_error", "InferInput"):
            assert hasattr(module, name), (module, name)
        assert module.auth.BasicAuth is BasicAuth if module in (http_aio, grpc_aio) else True
    assert grpcclient.MAX_GRPC_MESSAGE_SIZE == 2**31 - 1 and grpcclient.KeepAliveOptions().keepalive_timeout_ms == 20000
    assert grpcclient.KeepAliveOptions is grpc_aio.KeepAliveOptions
    assert grpcclient.model_config_pb2.ModelInput.Format.Name(1) == "FORMAT_NHWC"
    for module, name in ((grpcclient.service_pb2, "ModelInferRequest"), (grpcclient.model_config_pb2, "ModelConfig")):
        with pytest.raises(AttributeError, match=f"{name} is not supported"):
            getattr(module, name)
    with pytest.raises(ImportError, match="no cuda_shared_memory"):
        import tensorferry.compat.tritonclient.utils.cuda_shared_memory  # noqa: F401
    array = np.array([1.5, -2.0], np.float32)
    encoded = serialize_bf16_tensor(array).item()
    assert encoded == b"\xc0\x3f\x00\xc0" and deserialize_bf16_tensor(encoded).tolist() == [1.5, -2.0]


def test_regions_of_shared_memory(tmp_path):
    key = f"/tensorferry-test-{os.getpid()}"
    array = np.arange(6, dtype=np.int32)
    first = shared_memory.create_shared_memory_region("r", key, 64)
    second = shared_memory.create_shared_memory_region("again", key, 64)
    assert shared_memory.mapped_shared_memory_regions() == [key]
    shared_memory.set_shared_memory_region(first, [array, array], offset=4)
    found = shared_memory.get_contents_as_numpy(second, np.int32, [2, 6], offset=4)
    assert found.tolist() == [array.tolist()] * 2
    with pytest.raises(shared_memory.SharedMemoryException, match="expected at most 24 bytes at offset 40, found 48"):
        shared_memory.set_shared_memory_region(first, [array.astype(np.int64)], offset=40)
    with pytest.raises(shared_memory.SharedMemoryException):
        shared_memory.get_contents_as_numpy(first, np.int64, [9])
    with pytest.raises(shared_memory.SharedMemoryException, match="element 0"):
        shared_memory.set_shared_memory_region(first, [np.array([-1], np.int32)])
        shared_memory.get_contents_as_numpy(first, np.object_, [1])
    with pytest.warns(UserWarning, match="its size is 64 instead of 128"):
        third = shared_memory.create_shared_memory_region("large", key, 128)
    with pytest.raises(shared_memory.SharedMemoryException, match="unable to create"):
        shared_memory.create_shared_memory_region("only", key, 64, create_only=True)
    for handle in (first, third):
        shared_memory.destroy_shared_memory_region(handle)
    assert os.path.exists(f"/dev/shm{key}") and found.sum() == 30
    shared_memory.destroy_shared_memory_region(second)
    # An array that lies in it stays usable.
    assert not os.path.exists(f"/dev/shm{key}") and found.sum() == 30
    with pytest.raises(shared_memory.SharedMemoryException, match="destroyed"):
        shared_memory.destroy_shared_memory_region(second)
    for wrong in ("", "/", "/a/b", "/.."):
        with pytest.raises(shared_memory.SharedMemoryException, match="shm_key"):
            shared_memory.create_shared_memory_region("r", wrong, 64)


@pytest.mark.parametrize("module", [httpclient, grpcclient])
def test_inputs_in_shared_memory_of_any_size_do_not_end_the_program(addresses, module):
    with module.InferenceServerClient(addresses["http" if module is httpclient else "grpc"]) as client:
        for rows in (1 << 60, 1 << 55, 1 << 50):
            tensor = module.InferInput("X", [rows, 64], "FP32").set_shared_memory("none", 64)
            with pytest.raises(InferenceServerException, match="input 'X'.*(does not fit 64 bits|than there is room for)"):
                client.infer("digits", [tensor])
        tensor = module.InferInput("X", [1, 64], "FP32").set_shared_memory("none", 256)
        with pytest.raises(InferenceServerException, match="shared memory"):
            client.infer("digits", [tensor])
        output = module.InferRequestedOutput("label", class_count=1)
        with pytest.raises(InferenceServerException, match="classification"):
            output.set_shared_memory("none", 64)


@pytest.fixture(scope="module")
def own():
    @tensorferry.model(inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}, max_batch_size=0)
    def double(x):
        return {"y": x * 2}

    @tensorferry.model(inputs={"count": ("INT32", [1])}, outputs={"y": ("INT32", [1])})
    def count(count):
        for number in range(count[0]):
            time.sleep(0.005)
            yield {"y": np.array([number], np.int32)}

    @tensorferry.model(
        inputs={"image": ("BYTES", [1]), "score": ("FP32", [2])}, outputs={"label": ("BYTES", [1]), "score": ("FP32", [2])}
    )
    def label(image, score):
        return {"label": np.array([str(len(image[0])).encode()], object), "score": score}

    with tensorferry.Server({"double": double, "count": count, "label": label}) as server:
        yield server


def test_a_wait_that_is_cancelled_loses_no_response(own):
    async def received(stream):
        return [response.outputs["y"].item() async for response in stream if response.outputs]

    async def run():
        client = AsyncClient(own.grpc_url)
        stream = client.stream()
        await stream.send("count", {"count": np.array([3], np.int32)})
        stream.finish()
        waiting = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        # The loop does nothing while the response arrives.
        time.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await received(stream) == [0, 1, 2]

        stream = client.stream()
        await stream.send("count", {"count": np.array([100], np.int32)})
        stream.finish()
        found = []
        while True:
            try:
                response = await asyncio.wait_for(stream.__anext__(), 0.004)
            except asyncio.TimeoutError:
                continue
            except StopAsyncIteration:
                break
            found += [response.outputs["y"].item()] if response.outputs else []
        assert found == list(range(100))

        # Several that wait at once each get their own.
        stream = client.stream()
        await stream.send("count", {"count": np.array([40], np.int32)})
        stream.finish()
        assert sorted(sum(await asyncio.gather(*(received(stream) for _ in range(4))), [])) == list(range(40))

    asyncio.run(run())


def test_a_stream_of_tritons_names_loses_no_response_to_a_wait_that_is_cancelled():
    asked, may_answer = threading.Event(), threading.Event()

    @tensorferry.model(inputs={"count": ("INT32", [1])}, outputs={"y": ("INT32", [1])})
    def held(count):
        asked.set()
        may_answer.wait(20)
        for number in range(count[0]):
            yield {"y": np.array([number], np.int32)}

    async def run(address):
        async def requests():
            yield {"model_name": "held", "inputs": [grpc_aio.InferInput("count", [1], "INT32").set_data_from_numpy(np.array([3], np.int32))]}

        async with grpc_aio.InferenceServerClient(address) as client:
            responses = client.stream_infer(requests())
            waiting = asyncio.ensure_future(responses.__anext__())
            while not asked.is_set():
                await asyncio.sleep(0.001)
            # The response arrives while the loop does nothing, so that it has come when the wait is cancelled.
            may_answer.set()
            time.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return [result.as_numpy("y").item() async for result, error in responses]

    with tensorferry.Server({"held": held}) as server:
        assert asyncio.run(run(server.grpc_url.removeprefix("grpc://"))) == [0, 1, 2]


MODULES = pytest.mark.parametrize(("module", "transport"), [(httpclient, "http"), (grpcclient, "grpc")])


def of_tritons_names(own, module, transport):
    url = own.http_url if transport == "http" else own.grpc_url
    return module.InferenceServerClient(url.partition("://")[2])


@MODULES
@pytest.mark.parametrize("dtype", [">f4", "<f4"])
def test_an_input_is_copied_when_it_is_set(own, module, transport, dtype):
    x = np.arange(4, dtype=dtype)
    tensor = module.InferInput("x", [4], "FP32").set_data_from_numpy(x)
    x[:] = 99
    with of_tritons_names(own, module, transport) as client:
        for _ in range(2):
            assert client.infer("double", [tensor]).as_numpy("y").tolist() == [0, 2, 4, 6]


@MODULES
def test_what_tritons_clients_say_beside_answers(own, module, transport):
    tensor = module.InferInput("x", [4], "FP32").set_data_from_numpy(np.arange(4, dtype=np.float32))
    with of_tritons_names(own, module, transport) as client:
        calls = [client.is_model_ready, client.get_model_metadata, client.get_model_config, client.get_inference_statistics]
        for call in (*calls, lambda name, version: client.infer(name, [tensor], version)):
            with pytest.raises(InferenceServerException, match="model version must be a string"):
                call("double", 1)
        with pytest.raises(InferenceServerException, match=r"got unexpected numpy array shape \[4\], expected \[5\]"):
            module.InferInput("x", [5], "FP32").set_data_from_numpy(np.zeros(4, np.float32))
    for call in (client.is_server_live, lambda: client.infer("double", [tensor])):
        with pytest.raises(RuntimeError, match="is closed"):
            call()


def test_errors_of_connections_are_those_of_tritons_http_client(own):
    # Programs that wait for a server catch the system's errors: Triton's client does not translate them.
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tensor = httpclient.InferInput("x", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))
    client = httpclient.InferenceServerClient(address)
    calls = [client.is_server_live, lambda: client.infer("m", [tensor]), lambda: client.async_infer("m", [tensor]).get_result()]
    for call in calls:
        with pytest.raises(ConnectionRefusedError) as error:
            call()
        assert isinstance(error.value, InferenceServerException) and error.value.status() is None
        assert str(error.value) == error.value.message() == "connection refused: nothing listens there"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError) as error:
            httpclient.InferenceServerClient(address, network_timeout=0.1).is_server_live()
        assert isinstance(error.value, InferenceServerException)
    late = Scripted((504, {}, {"error": "the deadline passed"}))
    with pytest.raises(TimeoutError) as error:
        httpclient.InferenceServerClient(late.address).infer("m", [tensor])
    assert isinstance(error.value, InferenceServerException) and error.value.status() == "504"
    broken = Scripted(None)
    with pytest.raises(ConnectionError) as error:
        httpclient.InferenceServerClient(broken.address).infer("m", [tensor])
    assert isinstance(error.value, InferenceServerException) and not isinstance(error.value, ConnectionRefusedError)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_refuses_to_say_is_not_live(is_async):
    for status in (404, 503):
        server = Scripted((status, {}, {"error": "no"}))

        async def run():
            async with http_aio.InferenceServerClient(server.address) as client:
                return [await client.is_server_live(), await client.is_server_ready(), await client.is_model_ready("m")]

        client = httpclient.InferenceServerClient(server.address)
        found = asyncio.run(run()) if is_async else [client.is_server_live(), client.is_server_ready(), client.is_model_ready("m")]
        assert found == [False] * 3


def test_a_response_without_a_version_has_none(own):
    tensor = httpclient.InferInput("x", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))
    result = of_tritons_names(own, httpclient, "http").infer("double", [tensor], request_id="1")
    assert sorted(result.get_response()) == ["id", "model_name", "outputs"]
    server = Scripted((200, {}, {**SEVEN, "model_version": "3"}))
    assert httpclient.InferenceServerClient(server.address).infer("m", [tensor]).get_response()["model_version"] == "3"


JPEG = b"\xff\xd8\xff\xe0" + bytes(range(256))


@pytest.mark.parametrize("is_async", [False, True])
def test_each_tensor_has_a_form_of_its_own(own, is_async):
    def inputs(image, score, is_image_binary=True, is_score_binary=True):
        return [
            httpclient.InferInput("image", [1], "BYTES").set_data_from_numpy(np.array([image], object), is_image_binary),
            httpclient.InferInput("score", [2], "FP32").set_data_from_numpy(np.array(score, np.float32), is_score_binary),
        ]

    def infer(inputs, *outputs):
        outputs = [httpclient.InferRequestedOutput(*output) for output in outputs] or None
        address = own.http_url.removeprefix("http://")
        if not is_async:
            return httpclient.InferenceServerClient(address).infer("label", inputs, outputs=outputs)

        async def run():
            async with http_aio.InferenceServerClient(address) as client:
                return await client.infer("label", inputs, outputs=outputs)

        return asyncio.run(run())

    # Binary inputs that JSON does not have, and outputs in both forms.
    result = infer(inputs(JPEG, [np.nan, 2]), ("label", False), ("score", True))
    assert result.as_numpy("label").tolist() == ["260"] and result.get_output("label")["data"] == ["260"]
    assert np.isnan(result.as_numpy("score")[0]) and "binary_data_size" in result.get_output("score")["parameters"]
    result = infer(inputs(JPEG, [1, 2], is_score_binary=False), ("label",), ("score", False))
    assert result.as_numpy("label").tolist() == [b"260"] and result.get_output("score")["data"] == [1, 2]
    result = infer(inputs(b"abc", [np.inf, 2], is_image_binary=False))
    assert result.as_numpy("label").tolist() == [b"3"] and result.as_numpy("score").tolist() == [np.inf, 2]
    with pytest.raises(InferenceServerException, match="input 'image': .* UTF-8 .* send this input as binary data"):
        infer(inputs(JPEG, [1, 2], is_image_binary=False))


class Counted:
    """Passes connections on to a server, and counts them."""

    def __init__(self, url):
        self.to = url.partition("://")[2].rsplit(":", 1)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.count = 0
        threading.Thread(target=self.run, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.listening.getsockname()[1]}"

    def run(self):
        while True:
            try:
                one, _ = self.listening.accept()
            except OSError:
                return
            self.count += 1
            other = socket.create_connection((self.to[0], int(self.to[1])))
            for a, b in ((one, other), (other, one)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    def copy(self, a, b):
        try:
            while data := a.recv(1 << 16):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@MODULES
def test_headers_of_a_call_need_no_connection(own, module, transport):
    counted = Counted(own.http_url if transport == "http" else own.grpc_url)
    client = module.InferenceServerClient(counted.address)
    tensor = module.InferInput("x", [4], "FP32").set_data_from_numpy(np.arange(4, dtype=np.float32))
    for number in range(30):
        assert client.infer("double", [tensor], headers={"x-request-id": str(number)}).as_numpy("y").tolist() == [0, 2, 4, 6]
        assert client.is_server_live(headers={"x-request-id": str(-number)})
    assert counted.count == 1
    with pytest.raises(InferenceServerException, match="header"):
        client.infer("double", [tensor], headers={"a\nb": "c"})
    counted.listening.close()


def test_headers_of_a_call_are_of_that_call():
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            with listening.accept()[0] as connection:
                for _ in range(3):
                    seen.append(connection.recv(1 << 16).decode())
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        client = httpclient.InferenceServerClient(f"127.0.0.1:{listening.getsockname()[1]}")
        for headers in ({"x-own": "one"}, {"X-Own": "two"}, None):
            assert client.is_server_live(headers=headers)
        answering.join(20)
    assert [[line for line in head.split("\r\n") if line.startswith("x-own")] for head in seen] == [
        ["x-own: one"], ["x-own: two"], [],
    ]  # fmt: skip


def test_a_client_that_is_dropped_with_its_stream_leaves_nothing(own):
    def of_streams():
        """Threads that take responses, and those that wait for a stream's time."""
        threads = threading.enumerate()
        return [thread for thread in threads if thread.name == "tensorferry-stream" or isinstance(thread, threading.Timer)]

    answered = threading.Semaphore(0)
    before = len(of_streams())
    for _ in range(5):
        client = of_tritons_names(own, grpcclient, "grpc")
        client.start_stream(lambda result, error: answered.release(), stream_timeout=60)
        tensor = grpcclient.InferInput("count", [1], "INT32").set_data_from_numpy(np.array([3], np.int32))
        client.async_stream_infer("count", [tensor])
        del client, tensor
    # What was sent is answered, as with a client that is closed.
    assert all(answered.acquire(timeout=20) for _ in range(15))
    until = time.monotonic() + 20
    while len(of_streams()) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(of_streams()) == before


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"version": 1}, TypeError, "version: expected str or None, found 1"),
        ({"id": 5}, TypeError, "id: expected str or None, found 5"),
        ({"outputs": "label"}, TypeError, "outputs: expected names, found the string 'label'"),
        ({"outputs": ["y", 1]}, TypeError, "outputs: expected names that are str, found 1"),
        ({"parameters": {"a": None}}, TypeError, "parameter 'a': expected bool, int, float or str, found NoneType"),
        ({"parameters": {"a": b"x"}}, TypeError, "parameter 'a': .* found bytes"),
        ({"parameters": {"a": float("nan")}}, ValueError, "parameter 'a': expected a finite number, found nan"),
        ({"parameters": {"a": np.float32("-inf")}}, ValueError, "parameter 'a': expected a finite number, found -inf"),
        ({"parameters": {"a": 2**70}}, ValueError, "parameter 'a': expected a 64-bit integer, found 1180591620717411303424"),
    ],
)
def test_arguments_that_no_request_can_have_are_named(own, given, error, said):
    inputs = {"x": np.ones(1, np.float32)}
    streams = Client(own.grpc_url)
    calls = [own.client().infer, own.client().request, streams.stream().send, lambda *a, **b: list(streams.infer_stream(*a, **b))]
    calls.append(lambda *a, **b: asyncio.run(AsyncClient(own.http_url).infer(*a, **b)))
    for call in calls:
        with pytest.raises(error, match=said):
            call("double", inputs, **given)
    for module, transport in ((httpclient, "http"), (grpcclient, "grpc")):
        if "outputs" in given:
            # Triton's are objects.
            continue
        named = {{"version": "model_version", "id": "request_id"}.get(name, name): value for name, value in given.items()}
        tensor = module.InferInput("x", [1], "FP32").set_data_from_numpy(inputs["x"])
        with pytest.raises(InferenceServerException, match="must be a string" if "version" in given else said):
            of_tritons_names(own, module, transport).infer("double", [tensor], **named)


def test_numbers_of_numpy_are_parameters(own):
    parameters = {"a": np.int64(-3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("x"), "e": 2**63 - 1, "f": -(2**63)}
    inputs = {"x": np.ones(1, np.float32)}
    assert own.client().infer("double", inputs, parameters=parameters)["y"].tolist() == [2]
