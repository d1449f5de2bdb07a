"""Checks manifests against the schemas of Kubernetes, and other kinds against their definitions, if available.

Reads YAML documents from standard input. Fails if a document is invalid, if an expected kind is missing, or if a kind
occurs that is given with a "!". A line that ends in NOT CHECKED names a manifest without a definition.
"""

import argparse
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

# Kinds that are not in the schemas of Kubernetes.
FOREIGN = {"ClusterServingRuntime", "InferenceService", "PodMonitor", "ScaledObject"}


def closed(schema):
    """Returns the schema with unknown members forbidden, as for `kubectl --validate=strict`."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        schema["additionalProperties"] = False
    return schema


def definitions(folder):
    """Returns the schemas of the definitions in a directory, by kind and version."""
    found = {}
    files = sorted(pathlib.Path(folder).rglob("*.yaml"))
    if not files:
        sys.exit(f"--definitions {folder}: expected a directory with .yaml files, found none")
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                schema["properties"].update({"apiVersion": {}, "kind": {}, "metadata": {}})
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[key] = closed(schema)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubernetes", required=True)
    parser.add_argument("--definitions", action="append", default=[])
    parser.add_argument("--expect", action="append", default=[])
    options = parser.parse_args()
    known = {}
    for folder in options.definitions:
        known.update(definitions(folder))
    kinds, failures = [], 0
    for document in yaml.safe_load_all(sys.stdin):
        if not document:
            continue
        kind = document["kind"]
        kinds.append(kind)
        name = f"{kind} {document['metadata']['name']}"
        schema = known.get((document["apiVersion"], kind))
        try:
            if kind not in FOREIGN:
                kubernetes_validate.validate(document, options.kubernetes, strict=True)
                print(f"{name}: fits Kubernetes {options.kubernetes}")
            elif schema:
                jsonschema.validate(document, schema)
                print(f"{name}: fits its definition")
            else:
                print(f"{name}: NOT CHECKED")
        except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
            failures += 1
            place = "/".join(str(part) for part in error.path)
            print(f"{name}: {place}: {error.message}", file=sys.stderr)
    missing = [kind for kind in options.expect if (kind.removeprefix("!") in kinds) == kind.startswith("!")]
    if missing:
        print(f"not there, or there behind a !: {', '.join(missing)}", file=sys.stderr)
    sys.exit(bool(failures or missing))


if __name__ == "__main__":
    main()
