#!/usr/bin/env python3
"""Writes docs/configuration.md from the JSON Schemas that the binary prints, so that the page cannot differ from the program.

  scripts/config-docs.py            writes it
  scripts/config-docs.py --check    exits 1 if the page differs from what would be written; the default suite asks

The environment variable TRIREME names the binary; build/trireme by default.
"""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
BINARY = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
HEAD = """\
# Configuration

<!-- Written by scripts/config-docs.py from `trireme config schema`. Do not edit. -->

A run is one YAML file. Every key has a default except those marked *required*; an unknown key is an error with the nearest known one.
`trireme config explain CONFIG` prints each key of a file with its value and where the value came from, `config show` the resolved file, `config schema` the JSON
Schema for editors. `--set key.path=value` on the command line overrides the file and may be repeated; a list is written `--set data.train=[a,b]`.
`trireme config diff A B` prints the keys whose values differ between two resolved configurations (exit code 0: equal, 1: different).
YAML is read strictly: duplicate keys, anchors, aliases, tags and merge keys are refused with file, line and column.
"""
CLUSTER = """\
## The cluster file

`trireme plan --cluster FILE` reads a description of machines; `plan --cluster NAME` takes a built-in one. Every figure has a default from the device's type.
"""


def schema(*options):
    return json.loads(subprocess.run([BINARY, "config", "schema", *options], check=True, capture_output=True, text=True).stdout)


def scalar(value):
    if isinstance(value, float):
        return f"{value:g}".replace("e+", "e")
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def allowed(key):
    """The legal values of a key in words."""
    if "enum" in key:
        return " \\| ".join(f"`{scalar(value)}`" for value in key["enum"])
    if "const" in key:
        return f"`{scalar(key['const'])}`"
    for word in ("anyOf", "oneOf"):
        if word in key:
            return " or ".join(allowed(choice) for choice in key[word])
    kind = key.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        size = " (one or more)" if key.get("minItems", 0) > 0 else ""
        return f"list of {allowed(key['items'])}{size}" if "items" in key else "list"
    low, high = key.get("minimum", key.get("exclusiveMinimum")), key.get("maximum", key.get("exclusiveMaximum"))
    above, below = "exclusiveMinimum" in key, "exclusiveMaximum" in key
    text = {"string": "text", "boolean": "`true` \\| `false`"}.get(kind, kind)
    if low is not None and high is not None:
        return f"{text} {'above' if above else 'from'} {scalar(low)} {'below' if below else 'to'} {scalar(high)}"
    if low is not None:
        return f"{text} {'above' if above else 'from'} {scalar(low)}"
    return f"{text} {'below' if below else 'to'} {scalar(high)}" if high is not None else text


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def rows(section, prefix):
    """One row for each key, keys of sections within sections by their path."""
    for name, key in section["properties"].items():
        if "properties" in key:
            yield f"| `{prefix}{name}` | section | | {cell(key.get('description', ''))} |"
            yield from rows(key, f"{prefix}{name}.")
            continue
        default = "*required*" if name in section.get("required", []) else f"`{scalar(key['default'])}`" if "default" in key else ""
        yield f"| `{prefix}{name}` | {allowed(key)} | {default} | {cell(key.get('description', ''))} |"


def table(section, prefix):
    return "\n".join(["| key | allowed | default | meaning |", "|---|---|---|---|", *rows(section, prefix)]) + "\n"


def sections(root, level, prefix=""):
    plain = {name: key for name, key in root["properties"].items() if "properties" not in key}
    if plain:
        yield table({**root, "properties": plain}, prefix)
    for name, key in root["properties"].items():
        if "properties" in key:
            yield f"{'#' * level} `{prefix}{name}`\n\n{key.get('description', '')}\n"
            yield table(key, f"{prefix}{name}.")


def page():
    return "\n".join([HEAD, *sections(schema(), 2), CLUSTER, *sections(schema("--cluster"), 3)])


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("config-docs: docs/configuration.md differs from the program's schema; run scripts/config-docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
