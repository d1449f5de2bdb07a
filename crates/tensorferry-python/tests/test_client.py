"""The clients against the server of the wheel: asyncio, sockets, TLS, streams, and the names of Triton's client."""

import asyncio
import json
import multiprocessing
import os
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
import tensorferry.compat.tritonclient.http.aio as http_aio
from tensorferry import AsyncClient, Client, InferenceError
from tensorferry.compat.tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
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


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_sockets_of_this_machine(tmp_path, image, transport):
    http, grpc = tmp_path / "http.sock", tmp_path / "grpc.sock"
    process, _ = serve("--http-address", f"unix:{http}", "--grpc-address", f"unix:{grpc}")
    client = Client(f"{transport}+unix://{http if transport == 'http' else grpc}")
    assert client.infer("digits", {"X": image})["label"].tolist() == [7]
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
