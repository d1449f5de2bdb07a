"""Runs a server that sends traces and metrics by OTLP, both directly to a receiver that decodes them with OpenTelemetry's
own message definitions (the package opentelemetry-proto), and through another project's collector (Rotel) to the same
receiver.

Everything runs on this machine and ends with this script.
"""

import argparse
import contextlib
import gzip
import http.server
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from http_calls import call, free_port

SERVICE = "shop"


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
    """Fails if a message has unknown fields, which every receiver would ignore."""
    check(not len(UnknownFieldSet(message)), f"a field that {message.DESCRIPTOR.full_name} does not have")
    for field, value in message.ListFields():
        if field.message_type is not None:
            values = [value] if hasattr(value, "DESCRIPTOR") else value
            for one in values:
                known_only(one)


class Receiver(http.server.ThreadingHTTPServer):
    """Accepts and stores all messages."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.traces, self.metrics = [], []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        kinds = {
            "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse, self.server.traces),
            "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse, self.server.metrics),
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


@contextlib.contextmanager
def rotel(behind):
    """Starts another project's collector, which forwards everything to a receiver. Returns its URL."""
    program = pathlib.Path(importlib.util.find_spec("rotel").origin).parent / "rotel-agent"
    port = free_port()
    with subprocess.Popen(
        [program, "start", f"--otlp-http-endpoint=127.0.0.1:{port}", f"--otlp-grpc-endpoint=127.0.0.1:{free_port()}",
         "--exporter=otlp", f"--otlp-exporter-endpoint={behind}", "--otlp-exporter-protocol=http"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for("the collector listens", lambda: call(f"http://127.0.0.1:{port}/")[0] != 0)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def text_of(attributes):
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in attributes}


@contextlib.contextmanager
def running(server, models, variables):
    port = free_port()
    with subprocess.Popen(
        [server, models, f"--address=127.0.0.1:{port}", "--log=warn"],
        stdout=subprocess.DEVNULL, env={"OTEL_SERVICE_NAME": SERVICE, "PATH": "/usr/bin:/bin", **variables},
    ) as process:
        try:
            http = f"http://127.0.0.1:{port}"
            wait_for("the server is ready", lambda: call(f"{http}/readyz")[0] == 200)
            yield http
        finally:
            process.terminate()


def collected(name, server, models, request, receiver, url):
    """Returns what the receiver gets through a URL, decoded with OpenTelemetry's definitions."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
    with running(server, models, variables) as address:
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        status, _ = call(f"{address}/v2/models/digit_portrait/infer", request, traceparent=f"00-{trace}-{parent}-01")
        check(status == 200, f"the request was answered with {status}")
        wait_for("a trace", lambda: receiver.traces)
        counted = wait_for("metrics with the request", lambda: [
            message for _, message in receiver.metrics
            for metric in message.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "nv_inference_request_success" and any(point.as_int for point in metric.sum.data_points)
        ])[0]
    for content_type, message in receiver.traces + receiver.metrics:
        check(content_type == "application/x-protobuf", f"the type {content_type}")
        known_only(message)
    message = receiver.traces[0][1]
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
    print(f"{name}: {len(spans)} spans and {len(metrics)} metrics, read by OpenTelemetry's own definitions")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        models = folder / "models"
        subprocess.run([options.server, "init", models], check=True, stdout=subprocess.DEVNULL)
        request = (models / "one_digit.json").read_bytes()
        receiver = Receiver()
        collected("sent straight", options.server, models, request, receiver, receiver.url)
        receiver = Receiver()
        with rotel(receiver.url) as url:
            collected("by Rotel", options.server, models, request, receiver, url)


if __name__ == "__main__":
    main()
