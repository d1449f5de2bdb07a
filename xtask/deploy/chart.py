"""Renders the chart of docs/deploy/helm with several sets of values, and checks that each invalid set is refused with the
expected message.

Uses helm if it is installed, and otherwise helm's code as a library (the package helm-python-sdk). Writes all documents
to standard output.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import helm_python
import yaml

# The chart has no default image, so each set of values needs one. Values in the set take precedence over these.
ALWAYS = {"image": {"repository": "registry.example.com/oip-server"}}

# Sets of values that must be rendered, and strings that the output must contain; strings after a "!" must not occur.
GOOD = {
    "a claim": (
        {"models": {"claim": "shop"}},
        ["image: \"registry.example.com/oip-server:0.1.0\"", "claimName: shop", "--model-repository=/models", "terminationGracePeriodSeconds: 45", "egress: []"],
    ),
    "everything": (
        {
            "models": {"urls": ["s3://bucket/models", "hf://owner/repo@v1/onnx"], "cacheSize": "5Gi"},
            "image": {"repository": "localhost:5000/shop/server", "tag": "0.1.0-debug"},
            "imagePullSecrets": [{"name": "registry"}],
            "server": {
                "memoryBudget": "1GiB",
                "shutdownDelay": 10,
                "drainTimeout": 60,
                "accessLog": "text",
                "otlpEndpoint": "http://collector.monitoring:4318",
                "otlpMetricsEndpoint": "http://prometheus.monitoring:9090/api/v1/otlp",
                "arguments": ["--model-control-mode=poll", "--repository-poll-secs=60"],
                "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
                "envFrom": [{"secretRef": {"name": "bucket"}}],
            },
            "tls": {"secret": "certificate"},
            "auth": {"secret": "identities", "fetchesKeys": True},
            "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
            "service": {"type": "LoadBalancer", "httpPort": 443, "annotations": {"a": "b"}},
            "autoscaling": {"minReplicas": 3},
            "podMonitor": {"enabled": True},
            "serviceAccount": {"name": "models-reader"},
            "podAnnotations": {"team": "shop"},
            "podLabels": {"tier": "back"},
            "nodeSelector": {"kubernetes.io/arch": "arm64"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        [
            'image: "localhost:5000/shop/server:0.1.0-debug"',
            '"--model-repository=s3://bucket/models"',
            '"--model-repository=hf://owner/repo@v1/onnx"',
            "terminationGracePeriodSeconds: 80",
            "scheme: HTTPS",
            "--auth=/auth/identities.toml",
            "name: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            'value: "http://collector.monitoring:4318/v1/traces"',
            "kind: PodMonitor",
            "port: 443",
            "minReplicas: 3",
            "averageUtilization: 70",
            "podTargetLabels:",
        ],
    ),
    "an autoscaler by requests that run": (
        {"models": {"claim": "shop"}, "autoscaling": {"metric": "running", "running": 4}},
        ["type: Pods", "name: oip_requests_running", 'averageValue: "4"'],
    ),
    "an autoscaler by requests that wait": (
        {"models": {"claim": "shop"}, "autoscaling": {"metric": "pending"}},
        ["type: Pods", "name: nv_inference_pending_request_count", 'averageValue: "16"'],
    ),
    "KEDA": (
        {
            "models": {"claim": "shop"},
            "autoscaling": {"maxReplicas": 7, "running": 5, "keda": {"enabled": True, "serverAddress": "http://p:1"}},
        },
        [
            "kind: ScaledObject",
            "!HorizontalPodAutoscaler\n",
            "maxReplicaCount: 7",
            'serverAddress: "http://p:1"',
            'query: \'sum(avg_over_time(oip_requests_running{namespace="models",app_kubernetes_io_name="oip-server",'
            'app_kubernetes_io_instance="shop"}[30s]))\'',
            'threshold: "5"',
            'sum(nv_inference_pending_request_count{namespace="models"',
            'threshold: "16"',
        ],
    ),
    "a directory of the node, without an autoscaler": (
        {
            "models": {"volume": {"hostPath": {"path": "/srv/models"}}},
            "autoscaling": {"enabled": False},
            "networkPolicy": {"enabled": False},
            "replicas": 1,
        },
        ["path: /srv/models", "replicas: 1"],
    ),
}

# Sets of values that must be refused, each with a part of the error message.
WRONG = {
    "no image": ({"models": {"claim": "a"}, "image": {"repository": ""}}, "image.repository: no image is named"),
    "no models": ({}, "models: expected exactly one of claim, volume and urls, found none"),
    "models from two places": (
        {"models": {"claim": "a", "urls": ["s3://b"]}},
        "models: expected exactly one of claim, volume and urls, found claim and urls",
    ),
    "a misspelled value": ({"models": {"claim": "a"}, "server": {"memoryBuget": "1GiB"}}, "memoryBuget"),
    "a size without a number": ({"models": {"claim": "a"}, "server": {"memoryBudget": "much"}}, "memoryBudget"),
    "a URL of no store": ({"models": {"urls": ["ftp://host/models"]}}, "models.urls.0"),
    "a collector without a scheme": ({"models": {"claim": "a"}, "server": {"otlpEndpoint": "c:4318"}}, "otlpEndpoint"),
    "a port of text": ({"models": {"claim": "a"}, "service": {"httpPort": "http"}}, "service.httpPort"),
    "a kind of log that is not there": ({"models": {"claim": "a"}, "server": {"accessLog": "xml"}}, "accessLog"),
    "an argument that is no option": ({"models": {"claim": "a"}, "server": {"arguments": ["models"]}}, "arguments.0"),
    "a metric that is not there": ({"models": {"claim": "a"}, "autoscaling": {"metric": "memory"}}, "autoscaling.metric"),
    "no requests for a replica": ({"models": {"claim": "a"}, "autoscaling": {"running": 0}}, "autoscaling.running"),
    "a Prometheus without a scheme": (
        {"models": {"claim": "a"}, "autoscaling": {"keda": {"enabled": True, "serverAddress": "prometheus:9090"}}},
        "autoscaling.keda.serverAddress",
    ),
    "KEDA without autoscaling": (
        {"models": {"claim": "a"}, "autoscaling": {"enabled": False, "keda": {"enabled": True}}},
        "autoscaling: keda.enabled needs enabled: true",
    ),
    "more replicas at least than at most": (
        {"models": {"claim": "a"}, "autoscaling": {"minReplicas": 5, "maxReplicas": 2}},
        "autoscaling: minReplicas (5) is more than maxReplicas (2)",
    ),
}


class Refused(Exception):
    """Raised with the renderer's message."""


def by_helm(chart, values, helm):
    """Renders the chart with helm."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        done = subprocess.run(
            [helm, "template", "shop", chart, "--namespace", "models", "--values", file.name],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise Refused(re.sub(r"/", ".", done.stderr))
    return done.stdout


def by_library(chart, values):
    """Renders the chart with helm's code in this process."""
    try:
        with helm_python.Chart.load(chart) as loaded:
            loaded.validate_schema(values)
            files = loaded.render(values, name="shop", namespace="models", is_install=True)
    except helm_python.HelmError as error:
        raise Refused(re.sub(r"/", ".", str(error)))
    return "".join(f"---\n# {name}\n{text}\n" for name, text in files.items() if name.endswith(".yaml") and text.strip())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("chart", type=pathlib.Path)
    parser.add_argument("--helm", default="helm")
    options = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr)
    if shutil.which(options.helm):
        say(f"chart: by {options.helm}")
        subprocess.run([options.helm, "lint", options.chart, "--set", "models.claim=x", "--set", "image.repository=x"], check=True, stdout=sys.stderr)
        render = lambda values: by_helm(options.chart, values, options.helm)
    else:
        say("chart: helm is not installed; by its code as a library")
        report = helm_python.lint(options.chart, {**ALWAYS, "models": {"claim": "x"}}, strict=True)
        if report["errors"]:
            sys.exit(f"chart: {report['errors']}")
        render = lambda values: by_library(options.chart, values)
    failures = 0
    for name, (values, parts) in GOOD.items():
        text = render({**ALWAYS, **values})
        # The whole output must be YAML, and each document must have the fields that identify it in Kubernetes.
        for document in filter(None, yaml.safe_load_all(text)):
            assert document["metadata"]["name"], document
        wrong = [part for part in parts if (part.removeprefix("!") in text) == part.startswith("!")]
        failures += bool(wrong)
        say(f"chart with {name}: {'lacks, or has behind a !: ' + ', '.join(wrong) if wrong else 'rendered'}")
        print(text)
        print("---")
    for name, (values, expected) in WRONG.items():
        try:
            render({**ALWAYS, **values})
            message = None
        except Refused as refused:
            message = str(refused)
        is_right = message is not None and expected in message
        failures += not is_right
        say(f"chart with {name}: {'refused' if is_right else f'expected {expected!r}, found {message!r}'}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
