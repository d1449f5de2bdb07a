"""Runs a server that sends traces and metrics by OTLP: to a receiver that reads them with OpenTelemetry's own message definitions (the
package opentelemetry-proto), and to a real Prometheus that takes OTLP. Every family that /metrics shows must be in Prometheus, and
counters with the same values.

Everything is on this machine and ends with this script.
"""

import argparse
import contextlib
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SERVICE = "shop"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(url, body=None, **headers):
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def wait_for(what, is_so, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > deadline:
            sys.exit(f"it does not happen: {what}")
        time.sleep(0.2)
    return found


def check(condition, what):
    if not condition:
        sys.exit(what)


def known_only(message):
    """A field that the definitions do not have would be ignored by everybody."""
    check(not len(UnknownFieldSet(message)), f"a field that {message.DESCRIPTOR.full_name} does not have")
    for field, value in message.ListFields():
        if field.message_type is not None:
            values = [value] if hasattr(value, "DESCRIPTOR") else value
            for one in values:
                known_only(one)


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    traces, metrics = [], []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        kinds = {
            "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse, self.traces),
            "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse, self.metrics),
        }
        request, response, kept = kinds[self.path]
        message = request()
        message.ParseFromString(body)
        kept.append((self.headers["content-type"], message))
        answer = response().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def text_of(attributes):
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in attributes}


@contextlib.contextmanager
def running(server, models, *options):
    port = free_port()
    with subprocess.Popen(
        [server, models, f"--address=127.0.0.1:{port}", "--log=warn", *options],
        stdout=subprocess.DEVNULL, env={"OTEL_SERVICE_NAME": SERVICE, "PATH": "/usr/bin:/bin"},
    ) as process:
        try:
            http = f"http://127.0.0.1:{port}"
            wait_for("the server is ready", lambda: call(f"{http}/readyz")[0] == 200)
            yield http
        finally:
            process.terminate()


def own_definitions(server, models, request):
    """What is sent, read by the definitions of OpenTelemetry."""
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{receiver.server_port}"
    options = [f"--otlp-endpoint={url}", f"--otlp-metrics-endpoint={url}", "--otlp-metrics-interval=1s"]
    with running(server, models, *options) as address:
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        status, _ = call(f"{address}/v2/models/digit_portrait/infer", request, traceparent=f"00-{trace}-{parent}-01")
        check(status == 200, f"the request was answered with {status}")
        wait_for("a trace", lambda: Receiver.traces)
        counted = wait_for("metrics with the request", lambda: [
            message for _, message in Receiver.metrics
            for metric in message.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "nv_inference_request_success" and any(point.as_int for point in metric.sum.data_points)
        ])[0]
    receiver.shutdown()
    for content_type, message in Receiver.traces + Receiver.metrics:
        check(content_type == "application/x-protobuf", f"the type {content_type}")
        known_only(message)
    message = Receiver.traces[0][1]
    [of_resource] = message.resource_spans
    check(text_of(of_resource.resource.attributes)["service.name"] == SERVICE, "the name of the service")
    spans = of_resource.scope_spans[0].spans
    root = spans[0]
    check(root.name == "POST /v2/models/{model}/infer" and root.kind == Span.SPAN_KIND_SERVER, f"the first span: {root}")
    check((root.trace_id.hex(), root.parent_span_id.hex()) == (trace, parent), "the caller's ids")
    ids = {span.span_id for span in spans}
    check(len(ids) == len(spans) and all(len(span_id) == 8 for span_id in ids), "ids of spans")
    names = [span.name for span in spans]
    check(names.count("step") == 2 and {"read", "decode", "queue", "batch", "run", "split", "encode"} < set(names), f"spans: {names}")
    for span in spans[1:]:
        check(span.trace_id == root.trace_id and span.parent_span_id in ids, f"a span without its parent: {span}")
        check(root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano, f"times of {span}")
    metrics = counted.resource_metrics[0].scope_metrics[0].metrics
    for metric in metrics:
        kind = metric.WhichOneof("data")
        points = getattr(metric, kind).data_points
        check(points and metric.description, f"{metric.name} says nothing")
        if kind != "gauge":
            check(getattr(metric, kind).aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE, metric.name)
            check(all(0 < point.start_time_unix_nano <= point.time_unix_nano for point in points), f"times of {metric.name}")
        if kind == "sum":
            check(metric.sum.is_monotonic, metric.name)
        if kind == "histogram":
            for point in points:
                check(len(point.bucket_counts) == len(point.explicit_bounds) + 1, metric.name)
                check(sum(point.bucket_counts) == point.count, metric.name)
    print(f"{len(spans)} spans and {len(metrics)} metrics were read by OpenTelemetry's own definitions")


def receiver_flag(prometheus):
    """How a Prometheus is told to take OTLP; none for versions that do not."""
    said = subprocess.run([prometheus, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr)
    major, minor = int(version.group(1)), int(version.group(2))
    if major >= 3:
        return "--web.enable-otlp-receiver", f"{major}.{minor}"
    return ("--enable-feature=otlp-write-receiver" if (major, minor) >= (2, 47) else None), f"{major}.{minor}"


def samples_of(page):
    """Samples of /metrics by family: kind, and the values by labels. Of histograms, their counts."""
    families = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            families[name] = (kind, {})
        elif not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            name, _, labels = key.partition("{")
            labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
            owner = name.removesuffix("_count") if name not in families else name
            if owner in families:
                families[owner][1][labels] = float(value)
    return {name: family for name, family in families.items() if family[1]}


def real_prometheus(server, prometheus, flag, models, request, folder):
    (folder / "prometheus.yml").write_text("{}")
    port = free_port()
    with subprocess.Popen(
        [prometheus, flag, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:
        try:
            base = f"http://127.0.0.1:{port}"
            wait_for("Prometheus is ready", lambda: call(f"{base}/-/ready")[0] == 200)

            def query(text):
                status, body = call(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': text})}")
                check(status == 200, f"{text}: {body.decode()}")
                return json.loads(body)["data"]["result"]

            options = [f"--otlp-metrics-endpoint={base}/api/v1/otlp", "--otlp-metrics-interval=1s"]
            with running(server, models, *options) as address:
                for path, body in [("digits/infer", request), ("digit_portrait/infer", request), ("digits/infer", b"no JSON"), ("nowhere/infer", request)] * 25:
                    call(f"{address}/v2/models/{path}", body)
                shown = samples_of(call(f"{address}/metrics")[1].decode())
                runs = shown["nv_inference_count"][1]
                check(sum(runs.values()) >= 50, f"requests were counted: {runs}")
                wait_for("Prometheus knows all runs", lambda: sum(float(sample["value"][1]) for sample in query("nv_inference_count_total")) == sum(runs.values()))
                compared = 0
                for name, (kind, values) in shown.items():
                    stored = name
                    if kind == "counter":
                        stored = name.removesuffix("_total") + "_total"
                    if kind == "histogram":
                        stored = f"{name}_count"
                    found = {
                        frozenset((label, value) for label, value in sample["metric"].items() if label not in ("__name__", "job", "instance")): float(sample["value"][1])
                        for sample in query(stored)
                    }
                    check(found.keys() == values.keys(), f"{stored}: {found.keys()} and not {values.keys()}")
                    # What requests count does not change any more.
                    if name.startswith("nv_inference") and kind == "counter" or kind == "histogram":
                        check(found == values, f"{stored}: {found} and not {values}")
                        compared += len(values)
                buckets = query('oip_request_duration_seconds_bucket{model="digits"}')
                check(len(buckets) >= 18, f"buckets: {buckets}")
                job = {sample["metric"]["job"] for sample in query("oip_server_ready")}
                check(job == {SERVICE}, f"the job {job}")
            print(f"{len(shown)} families are in Prometheus as they are shown, {compared} samples of them with the same values")
        finally:
            process.terminate()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("--prometheus", default="prometheus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        models = folder / "models"
        subprocess.run([options.server, "init", models], check=True, stdout=subprocess.DEVNULL)
        request = (models / "one_digit.json").read_bytes()
        own_definitions(options.server, models, request)
        flag, version = receiver_flag(options.prometheus)
        if flag is None:
            print(f"skipped: Prometheus {version} takes no OTLP; --otlp-prometheus names one from 2.47 on, such as that of Debian 13")
            return
        real_prometheus(options.server, options.prometheus, flag, models, request, folder)


if __name__ == "__main__":
    main()
