"""Serves models from emulated stores: moto and s3s-fs for S3, moto for Google's store too, Azurite for Azure, and our own
imitation of the Hub.

Arguments: the program oip-server, the directory of npm's packages, and the program s3s-fs.
"""

import argparse
import hashlib
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tensors(numbers):
    """Returns a safetensors file with one tensor of bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(numbers)], "data_offsets": [0, len(numbers)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(numbers)


LARGE = tensors(os.urandom(20_000_000))
MODELS = {
    "production/small/1/model.safetensors": tensors(b"abc"),
    "production/large/1/model.safetensors": LARGE,
    "production/with space/1/model.safetensors": tensors(b"def"),
}


def wait_for(port, process, patience=60):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended")
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args} does not listen")


class Suite:
    def __init__(self, server, node_modules, s3s, folder):
        self.server, self.node_modules, self.s3s, self.folder = server, node_modules, s3s, folder
        self.children = []

    def start(self, command, port):
        log = open(self.folder / f"{port}.log", "wb")
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self.children.append(process)
        wait_for(port, process)

    def stop(self):
        for child in self.children:
            child.terminate()
        for child in self.children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()

    def environment(self, more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **more}

    def check(self, url, more, cache, arguments=()):
        command = [self.server, "check", "--json", "--log=info", "--repository-cache", str(cache), *arguments, url]
        done = subprocess.run(command, env=self.environment(more), capture_output=True, text=True, timeout=120)
        models = json.loads(done.stdout)["models"] if done.stdout.strip() else []
        return done.returncode, {model["name"]: model for model in models}, done.stderr

    def serves(self, url, more, put, remove, arguments=()):
        """Tests the life cycle of a bucket: it is served, changed while it is polled, and removed."""
        cache = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for key, content in MODELS.items():
            put(key, content)
        code, models, log = self.check(url, more, cache, arguments)
        assert code == 0 and set(models) == {"small", "large", "with space"}, (code, models, log)
        digest = hashlib.sha256(LARGE).hexdigest()
        assert (cache / "objects" / digest).read_bytes() == LARGE
        http_port, grpc_port = free_port(), free_port()
        command = [
            self.server, url, "--log=info", "--model-control-mode=poll", "--repository-poll-secs=1",
            f"--http-address=127.0.0.1:{http_port}", f"--grpc-address=127.0.0.1:{grpc_port}",
            "--repository-cache", str(cache), *arguments,
        ]
        server = subprocess.Popen(command, env=self.environment(more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(http_port, server)

            def status(path):
                try:
                    return urllib.request.urlopen(f"http://127.0.0.1:{http_port}{path}", timeout=10).status
                except urllib.error.HTTPError as error:
                    return error.code

            def until(what, is_so):
                end = time.monotonic() + 60
                while not is_so():
                    assert time.monotonic() < end, what
                    time.sleep(0.2)

            until("the model is ready", lambda: status("/v2/models/small/ready") == 200)
            put("production/small/2/model.safetensors", tensors(b"xyz"))
            put("production/new/1/model.safetensors", tensors(b"new"))
            until("version 2 is ready", lambda: status("/v2/models/small/versions/2/ready") == 200)
            until("the new model is ready", lambda: status("/v2/models/new/ready") == 200)
            remove("production/new/1/model.safetensors")
            until("the removed model is gone", lambda: status("/v2/models/new/ready") != 200)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        return cache


def s3(suite):
    import boto3

    port = free_port()
    suite.start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
    client.create_bucket(Bucket="models")
    more = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    suite.serves(
        "s3://models/production",
        more,
        lambda key, content: client.put_object(Bucket="models", Key=key, Body=content),
        lambda key: client.delete_object(Bucket="models", Key=key),
    )
    code, _, log = suite.check("s3://no-such-bucket", more, suite.folder / "absent")
    assert code == 1 and "does not exist; check the URL" in log, log


def encrypted(context, port):
    """Opens a port with TLS that forwards connections to a port without TLS."""
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for side in (source, target):
                try:
                    side.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def serve(connection):
        try:
            outside = context.wrap_socket(connection, server_side=True)
        except OSError:
            # The handshake fails because the client does not trust the authority.
            return
        inside = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=copy, args=(inside, outside), daemon=True).start()
        copy(outside, inside)

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def signed(suite):
    """Tests a store that checks signatures, behind TLS with its own authority: wrong keys, no keys, and an unknown
    authority."""
    import boto3
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    ca, chain, key = (suite.folder / name for name in ("ca.pem", "s3.pem", "s3-key.pem"))
    authority.cert_pem.write_to_path(ca)
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(key)
    port, store = free_port(), suite.folder / "s3s"
    store.mkdir()
    suite.start([str(suite.s3s), "--host", "127.0.0.1", "--port", str(port), "--access-key", "the-id", "--secret-key", "the-secret",
                 str(store)], port)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    url = f"https://localhost:{encrypted(context, port)}"
    keys = {"aws_access_key_id": "the-id", "aws_secret_access_key": "the-secret", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, verify=str(ca), **keys)
    client.create_bucket(Bucket="models")
    more = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "the-id",
        "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_REGION": "us-east-1",
    }
    trusted = ["--repository-ca", str(ca)]
    suite.serves(
        "s3://models/production",
        more,
        lambda key, content: client.put_object(Bucket="models", Key=key, Body=content),
        lambda key: client.delete_object(Bucket="models", Key=key),
        trusted,
    )

    def refused(name, changed, arguments, *parts):
        """Checks that starting without a cache fails with these words, and that the message contains no secret."""
        code, models, log = suite.check("s3://models/production", changed, suite.folder / name, arguments)
        assert code == 1 and not models, (name, code, models, log)
        missing = [part for part in parts if part not in log]
        assert not missing and "the-secret" not in log, (name, missing, log)

    access = "access to the list of objects is refused; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    refused("wrong-secret", {**more, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}, trusted, access, "SignatureDoesNotMatch")
    refused("wrong-id", {**more, "AWS_ACCESS_KEY_ID": "nobody"}, trusted, access, "NotSignedUp")
    # There is no service that provides credentials for the machine's role.
    without = {name: value for name, value in more.items() if "KEY" not in name}
    refused("no-key", {**without, "AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{free_port()}"}, trusted, access)
    refused("unsigned", {**without, "AWS_SKIP_SIGNATURE": "true"}, trusted, access, "AccessDenied")
    refused("unknown-authority", more, [], "UnknownIssuer")
    code, _, log = suite.check("s3://no-such-bucket", more, suite.folder / "absent-signed", trusted)
    assert code == 1 and "does not exist; check the URL" in log, log
    # Keys, region and endpoint come from the files of `aws configure`.
    aws = suite.folder / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text("[shop]\naws_access_key_id = the-id\naws_secret_access_key = the-secret\n")
    (aws / "config").write_text(f"[profile shop]\nregion = us-east-1\nendpoint_url = {url}\n")
    code, models, log = suite.check("s3://models/production", {"AWS_PROFILE": "shop"}, suite.folder / "by-profile", trusted)
    assert code == 0 and "small" in models, log


def google(suite):
    """Tests Google's XML API, a dialect of S3's. No emulator in the registries lists objects with it, so moto takes its
    place."""
    import boto3

    port = free_port()
    suite.start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
    client.create_bucket(Bucket="models", ACL="public-read")
    account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True, "client_email": "", "private_key": "",
               "private_key_id": ""}
    suite.serves(
        "gs://models/production",
        {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)},
        lambda key, content: client.put_object(Bucket="models", Key=key, Body=content, ACL="public-read"),
        lambda key: client.delete_object(Bucket="models", Key=key),
    )


def azure(suite):
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    program = suite.node_modules / "azurite/dist/src/blob/main.js"
    suite.start(["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck",
                 "--location", str(suite.folder / "azurite")], port)
    # The emulator's account, which is the same for all users.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    service = BlobServiceClient(f"http://127.0.0.1:{port}/devstoreaccount1", credential=key)
    container = service.create_container("models")
    more = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}"}
    suite.serves(
        "az://models/production",
        more,
        lambda key, content: container.upload_blob(key, content, overwrite=True),
        container.delete_blob,
    )
    code, _, log = suite.check("az://no-such-container", more, suite.folder / "absent-az")
    assert code == 1 and "does not exist; check the URL" in log, log


class Hub(http.server.BaseHTTPRequestHandler):
    """Imitates the Hub: a commit, a tree in pages, and files by a redirect to another path."""

    protocol_version = "HTTP/1.1"
    files, delay = {}, 0.0

    def do_GET(self):
        path, _, query = self.path.partition("?")
        path, query = urllib.parse.unquote(path), urllib.parse.parse_qs(query)
        listing = repr(sorted((key, hashlib.sha256(content).hexdigest()) for key, content in self.files.items()))
        commit = hashlib.sha1(listing.encode()).hexdigest()
        api, files = "/api/models/owner/repo", f"/owner/repo/resolve/{commit}/"
        if path == f"{api}/revision/main":
            return self.answer(200, json.dumps({"sha": commit}).encode())
        if path == f"{api}/tree/{commit}":
            names, start = sorted(self.files), int(query.get("cursor", ["0"])[0])
            items = []
            for name in names[start:start + 2]:
                content = self.files[name]
                item = {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                if len(content) > 1000:
                    item["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
                items.append(item)
            more = {}
            if start + 2 < len(names):
                more["Link"] = f'<http://{self.headers["Host"]}{path}?recursive=true&cursor={start + 2}>; rel="next"'
            return self.answer(200, json.dumps(items).encode(), more)
        if path.startswith(files) and path[len(files):] in self.files:
            return self.answer(302, b"", {"Location": f"/cdn/{urllib.parse.quote(path[len(files):])}"})
        if path.startswith("/cdn/"):
            content = self.files[path[len("/cdn/"):]]
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            end = min(int(last) + 1, len(content))
            head = {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}",
                    "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            time.sleep(self.delay)
            return self.answer(206, content[int(first):end], head)
        return self.answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})

    def answer(self, status, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class HubServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Ignores errors: clients that are killed disconnect during a response."""


def start_hub():
    hub = HubServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    return {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}


def hub(suite):
    Hub.files, Hub.delay = {}, 0.0
    more = start_hub()

    def put(key, content):
        Hub.files[key.removeprefix("production/")] = content

    def remove(key):
        del Hub.files[key.removeprefix("production/")]

    suite.serves("hf://owner/repo", more, put, remove)
    code, _, log = suite.check("hf://owner/other", more, suite.folder / "absent-hub")
    assert code == 1 and "HF_TOKEN" in log, log


FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "crates/oip-text/tests/fixtures/words"


def text(suite):
    """Tests a directory of a text model: the network, or the network that is named, is fetched with the files that
    describe it, and nothing else is."""
    files = {str(path.relative_to(FIXTURES)): path.read_bytes() for path in FIXTURES.rglob("*") if path.is_file()}
    network = files["onnx/model.onnx"]
    Hub.files = {**files, "onnx/model_quantized.onnx": network, "model.safetensors": LARGE}
    Hub.delay = 0.0
    more = start_hub()
    for url, name, other in [
        ("hf://owner/repo", "repo", "onnx/model_quantized.onnx"),
        ("hf://owner/repo/onnx/model_quantized.onnx", "repo", "onnx/model.onnx"),
    ]:
        cache = pathlib.Path(tempfile.mkdtemp(dir=suite.folder))
        code, models, log = suite.check(url, more, cache)
        assert code == 0 and set(models) == {name}, (code, models, log)
        assert [tensor["name"] for tensor in models[name]["inputs"]] == ["text", "text_pair"], models
        kept = [path for path in cache.glob("views/*/tree/**/*") if path.is_file()]
        assert kept and not [path for path in kept if path.name == "model.safetensors" or str(path).endswith(other)], kept


def killed(suite):
    """Tests a server that is killed while it downloads: it leaves nothing that could be taken for a model, and the next
    server resumes."""
    Hub.files = {"large/1/model.safetensors": tensors(os.urandom(60_000_000)), "small/1/model.safetensors": tensors(b"a")}
    Hub.delay = 0.5
    more = start_hub()
    cache = suite.folder / "killed"
    command = [suite.server, "check", "--log=off", "--repository-cache", str(cache), "hf://owner/repo"]
    for _ in range(3):
        # The previous server's file stays until this server removes it.
        before = set(cache.glob("partial/*.part"))
        server = subprocess.Popen(command, env=suite.environment(more), stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not set(cache.glob("partial/*.part")) - before:
            assert time.monotonic() < end, "nothing is fetched"
            time.sleep(0.01)
        time.sleep(0.3)
        server.kill()
        server.wait()
        left = list(cache.glob("partial/*.part"))
        assert len(left) == 1 and not list(cache.glob("views/*/tree/*/large/*")), left
    Hub.delay = 0.0
    code, models, log = suite.check("hf://owner/repo", more, cache)
    assert code == 0 and set(models) == {"large", "small"}, log
    assert not list(cache.glob("partial/*"))


CHECKS = [s3, signed, google, azure, hub, text, killed]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("server")
    options.add_argument("node_modules", type=pathlib.Path)
    options.add_argument("s3s", type=pathlib.Path)
    options.add_argument("--only", default="")
    options = options.parse_args()
    failed = 0
    for check in CHECKS:
        if options.only not in check.__name__:
            continue
        with tempfile.TemporaryDirectory() as folder:
            suite = Suite(options.server, options.node_modules, options.s3s, pathlib.Path(folder))
            start = time.monotonic()
            try:
                check(suite)
                print(f"ok      {check.__name__} ({time.monotonic() - start:.1f} s)")
            except Exception:
                failed += 1
                print(f"FAILED  {check.__name__}")
                traceback.print_exc()
            finally:
                suite.stop()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
