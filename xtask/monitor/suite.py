"""Runs a server under a small load and a real Prometheus that scrapes it, and checks that every query has samples: those
of the dashboard, of every rule in docs/deploy/monitoring, and of autoscalers. For an alert, the compared expression
must have samples; most alerts must not fire.

Everything runs on this machine and ends with this script.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

from http_calls import call, free_port

DEPLOY = pathlib.Path(__file__).parents[2] / "docs/deploy"
MONITORING = DEPLOY / "monitoring"
# The labels of pods and the namespace, as set by Prometheus' usual configuration, or by a PodMonitor with
# podTargetLabels.
LABELS = {"namespace": "models", "app_kubernetes_io_name": "oip-server", "app_kubernetes_io_instance": "shop"}
# Seconds for which Prometheus scrapes, once per second, before the queries run.
SECONDS = 25
# Values for Grafana's variables.
VARIABLES = {
    "$__rate_interval": "20s",
    "$job": ".*",
    "$instance": ".*",
    "$model": ".*",
}
COMPARISON = re.compile(r"^(.*\S)\s+(?:[<>]=?|[=!]=)\s+[-0-9.e]+\s*$", re.DOTALL)


def wait_for(what, url, seconds=60):
    deadline = time.monotonic() + seconds
    while call(url)[0] not in (200, 503):
        if time.monotonic() > deadline:
            sys.exit(f"{what} does not answer at {url}")
        time.sleep(0.2)


def load(http, request, until):
    """Sends requests that succeed, that fail in every way, and that the cache answers."""
    count = 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        while time.monotonic() < until:
            wanted = [
                ("/v2/models/digits/infer", request),
                ("/v2/models/digit_portrait/infer", request),
                ("/v2/models/cached/infer", request),
                ("/v2/models/digits/infer", b'{"inputs": []}'),
                ("/v2/models/digits/infer", b"no JSON"),
                ("/v2/models/broken/infer", request),
                ("/v2/models/nowhere/infer", request),
                ("/nowhere", None),
            ]
            done = pool.map(lambda one: call(f"{http}{one[0]}", one[1])[0], wanted * 4)
            count += sum(1 for status in done if status == 200)
            time.sleep(0.05)
    return count


def repository(server, folder):
    """Writes the example repository, with a model that caches responses and one that is broken."""
    subprocess.run([server, "init", folder], check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(folder / "digits", folder / "cached")
    with open(folder / "cached/config.pbtxt", "w") as file:
        file.write("response_cache { enable: true }\n")
    (folder / "broken/1").mkdir(parents=True)
    (folder / "broken/1/model.onnx").write_bytes(b"no model")
    return (folder / "one_digit.json").read_bytes()


def filled(query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def dashboard_queries():
    """Yields the name of each query, the query, and whether it may have no samples."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", filled(target["expr"]), False
    for annotation in dashboard["annotations"]["list"]:
        query = filled(annotation["expr"])
        yield f"annotation {annotation['name']!r}", COMPARISON.match(query).group(1), False
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            yield f"variable {variable['name']!r}", f'count by ({label}) ({filled(metric)}) and on ({label}) {filled(metric)}', False


def rule_queries(prometheus):
    """Returns the rules as Prometheus has parsed them."""
    answer = json.loads(call(f"{prometheus}/api/v1/rules")[1])
    for group in answer["data"]["groups"]:
        for rule in group["rules"]:
            if rule.get("lastError"):
                sys.exit(f"rule {rule['name']}: {rule['lastError']}")
            if rule["type"] == "recording":
                yield f"rule {rule['name']}", rule["query"], False
                continue
            yield f"alert {rule['name']}", rule["query"], True
            compared = COMPARISON.match(rule["query"])
            if not compared:
                sys.exit(f"alert {rule['name']}: expected a comparison with a number at its end, found {rule['query']}")
            yield f"alert {rule['name']}, what it compares", compared.group(1), False


def autoscaler_queries():
    """Returns the queries of KEDA, from the manifest and from the chart's template."""
    for line in (DEPLOY / "keda/scaledobject.yaml").read_text().splitlines():
        if line.strip().startswith("query: "):
            yield "keda", line.strip().removeprefix("query: "), False
    template = (DEPLOY / "helm/templates/scaledobject.yaml").read_text()
    pods = re.search(r'\$pods := printf "(.*?)"', template).group(1)
    for value in LABELS.values():
        pods = pods.replace("%q", f'"{value}"', 1)
    for query in re.findall(r'query: {{ printf "(.*?)" \$pods', template):
        yield "the chart's ScaledObject", query.replace("%s", pods), False


def samples(prometheus, query):
    status, body = call(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    answer = json.loads(body)
    if status != 200:
        return None, answer["error"]
    values = [float(sample["value"][1]) for sample in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)], None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--promtool", default="promtool")
    options = parser.parse_args()
    for program in (options.prometheus, options.promtool):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed (Debian: apt-get install prometheus)")
    rules = MONITORING / "rules.yaml"
    subprocess.run([options.promtool, "check", "rules", rules], check=True)
    subprocess.run([options.promtool, "test", "rules", pathlib.Path(__file__).parent / "alerts.yaml"], check=True)
    running = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            request = repository(options.server, folder / "models")
            port, own = free_port(), free_port()
            http, prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"
            running.append(
                subprocess.Popen(
                    [options.server, folder / "models", f"--address=127.0.0.1:{port}", "--response-cache-byte-size=1MiB",
                     "--access-log=json", f"--access-log-file={folder / 'access.log'}", "--log=warn"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )
            (folder / "prometheus.yml").write_text(json.dumps({
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [
                    {
                        "job_name": "tensorferry",
                        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": LABELS}],
                    }
                ],
            }))
            wait_for("the server", f"{http}/readyz")
            running.append(
                subprocess.Popen(
                    [options.prometheus, f"--config.file={folder / 'prometheus.yml'}",
                     f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{own}"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )
            wait_for("Prometheus", f"{prometheus}/-/ready")
            answered = load(http, request, time.monotonic() + SECONDS)
            print(f"{answered} requests were answered while Prometheus scraped")
            failures, count = 0 if answered else 1, 0
            autoscaling = [*autoscaler_queries()]
            if len(autoscaling) != 4:
                sys.exit(f"expected two queries of keda/ and two of the chart, found {autoscaling}")
            queries = [*dashboard_queries(), *rule_queries(prometheus), *autoscaling, ("nothing", "oip_no_such_metric", None)]
            for name, query, may_be_empty in queries:
                found, error = samples(prometheus, query)
                if may_be_empty is None:
                    # This query must have no samples; otherwise the check accepts any query.
                    failures += bool(found or error)
                    continue
                count += 1
                if error or not (found or may_be_empty):
                    failures += 1
                    print(f"{name}: {error or 'no samples'}: {query}", file=sys.stderr)
            print(f"{count - failures} passed, {failures} failed")
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(30)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
