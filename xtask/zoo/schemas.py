"""Generates crates/onnx-operators/src/schemas.rs from ONNX's own schemas of all versions of operators.

    python xtask/zoo/schemas.py crates/onnx-operators/src > new.rs

Needs the Python package onnx, which contains the schemas of all operator sets. The operators are those in the table
(table/).
"""

import collections
import pathlib
import re
import sys

from onnx import defs

# The newest operator sets that the table supports.
NEWEST = {"": 25, "ai.onnx.ml": 5}
# Stands for any number of inputs or outputs.
ANY = 1 << 20


def changes(versions, value):
    """Yields the operator sets in which a value changes, with the new value."""
    found = []
    for schema in versions:
        if not found or found[-1][1] != value(schema):
            found.append((schema.since_version, value(schema)))
    return found


def required(schema):
    """Returns the number of inputs that a node must list, with empty names if necessary. The schema's own number also
    counts optional inputs that precede a list which may be empty."""
    option = defs.OpSchema.FormalParameterOption
    last = 0
    for index, parameter in enumerate(schema.inputs):
        is_needed = parameter.option == option.Single or parameter.option == option.Variadic and parameter.min_arity > 0
        last = index + 1 if is_needed else last
    return last


def row(domain, name, versions):
    inputs = changes(versions, lambda schema: (required(schema), min(schema.max_input, ANY)))
    outputs = changes(versions, lambda schema: min(schema.max_output, ANY))
    present = collections.OrderedDict()
    for at, schema in enumerate(versions):
        after = versions[at + 1].since_version - 1 if at + 1 < len(versions) else None
        for attribute in sorted(schema.attributes):
            first, _ = present.get(attribute, (schema.since_version, None))
            present[attribute] = (first, after)
    last = {name: after for name, (_, after) in present.items()}
    limited = []
    for attribute, (first, after) in sorted(present.items()):
        if first > versions[0].since_version or last[attribute] is not None:
            limited.append(f'("{attribute}", {first}, {after or "LATEST"})')
    number = lambda count: "ANY" if count == ANY else str(count)
    inputs = ", ".join(f"({since}, {low}, {number(high)})" for since, (low, high) in inputs)
    outputs = ", ".join(f"({since}, {number(high)})" for since, high in outputs)
    return f'    schema("{domain}", "{name}", &[{inputs}], &[{outputs}], &[{", ".join(limited)}]),'


def main():
    families = sorted((pathlib.Path(sys.argv[1]) / "table").glob("*.rs"))
    table = "".join(family.read_text() for family in families)
    kinds = {"op": "", "ml": "ai.onnx.ml"}
    wanted = {(kinds[kind], name) for kind, name in re.findall(r'\b(op|ml)\(\s*"(\w+)"', table)}
    versions = collections.defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if (schema.domain, schema.name) in wanted and schema.since_version <= NEWEST[schema.domain]:
            versions[schema.domain, schema.name].append(schema)
    print("//! How many inputs and outputs ONNX's operators have, and which attributes, by operator set. Written by `xtask/zoo/schemas.py`")
    print("//! from the schemas of the Python package onnx.\n")
    print("use crate::schema::{ANY, LATEST, Schema, schema};\n")
    print("/// By domain and name.")
    print("pub(crate) static SCHEMAS: &[Schema] = &[")
    for (domain, name), schemas in sorted(versions.items()):
        print(row(domain, name, sorted(schemas, key=lambda schema: schema.since_version)))
    print("];")
    for missing in sorted(wanted - versions.keys()):
        print(f"no schema: {missing}", file=sys.stderr)


if __name__ == "__main__":
    main()
