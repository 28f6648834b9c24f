#!/usr/bin/env python3
"""Writes docs/configuration.md and configs/trireme.schema.json from the JSON Schemas that the binary prints, so that neither can differ from the program.

  scripts/config-docs.py            writes them
  scripts/config-docs.py --check    exits 1 if one differs from what would be written; the default suite asks

The environment variable TRIREME names the binary; build/trireme by default.
"""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
SCHEMA = ROOT / "configs" / "trireme.schema.json"  # editors find it through the first line of each file beside it
BINARY = os.environ.get("TRIREME", str(ROOT / "build" / "trireme"))
HEAD = """\
# Configuration

<!-- Written by scripts/config-docs.py from `trireme config schema`. Do not edit. -->

A run is one YAML file. Every key has a default except those marked *required*; an unknown key is an error with the nearest known one.
`trireme config explain CONFIG` prints each key of a file with its value and where the value came from, `config show` the resolved file, `config schema` the JSON
Schema for editors. `--set key.path=value` on the command line overrides the file and may be repeated; a list is written `--set data.train=[a,b]`.
`trireme config diff A B` prints the keys whose values differ between two resolved configurations (exit code 0: equal, 1: different).
A key that another key of the file leaves without effect is refused. One that would have an effect with more ranks or on another device is noted at the start of
`train`, and by `config show` and `config explain`.
YAML is read strictly: duplicate keys, anchors, aliases, tags and merge keys are refused with file, line and column.

An editor with the YAML language server checks and completes a file whose first line names the schema by its path, relative to the file:
`# yaml-language-server: $schema=trireme.schema.json`, as in `configs/`. `trireme config schema > trireme.schema.json` writes it elsewhere.

## Including files
```yaml
include: base.yaml                                # or a list: [base.yaml, ../machines/large.yaml]
training: {optimizer: {learning_rate: 1.0e-4}}    # every other key is that of base.yaml
```
`include` reads other configuration files, by paths relative to the file that names them; they may include others. The keys of the including file
override theirs, and a later file of a list overrides an earlier one. Sections merge key by key; lists and values are replaced. A key cannot be taken
away again: what has no effect with the overriding keys, such as `decay_steps` without `wsd`, must not be in the included file. Paths of data and run
directories stay relative to the working directory. Every command reads the merged configuration, `config show` prints it, and a run records it; messages
and `config explain` name the file in which a key stands. Cycles, more than eight files deep and more than 64 files are refused.
"""
CLUSTER = """\
## The cluster file

`trireme plan --cluster FILE` reads a description of machines; `plan --cluster NAME` takes a built-in one. Every figure has a default from the device's type.
"""


def printed(*options):
    return subprocess.run([BINARY, "config", "schema", *options], check=True, capture_output=True, text=True).stdout


def schema(*options):
    return json.loads(printed(*options))


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
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def rows(section, prefix, required):
    """One row for each key, keys of sections within sections by their path. `required`: the schema that demands the required keys of the section."""
    for name, key in section["properties"].items():
        if "properties" in key:
            yield f"| `{prefix}{name}` | section | | {cell(key.get('description', ''))} |"
            yield from rows(key, f"{prefix}{name}.", required.get("properties", {}).get(name, {}))
            continue
        default = "*required*" if name in required.get("required", []) else f"`{scalar(key['default'])}`" if "default" in key else ""
        yield f"| `{prefix}{name}` | {allowed(key)} | {default} | {cell(key.get('description', ''))} |"


def table(section, prefix, required):
    return "\n".join(["| key | allowed | default | meaning |", "|---|---|---|---|", *rows(section, prefix, required)]) + "\n"


def sections(root, level):
    required = root.get("then", {})
    plain = {name: key for name, key in root["properties"].items() if "properties" not in key}
    if plain:
        yield table({**root, "properties": plain}, "", required)
    for name, key in root["properties"].items():
        if "properties" in key:
            yield f"{'#' * level} `{name}`\n\n{key.get('description', '')}\n"
            yield table(key, f"{name}.", required.get("properties", {}).get(name, {}))


def page():
    return "\n".join([HEAD, *sections(schema(), 2), CLUSTER, *sections(schema("--cluster"), 3)])


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    code = 0
    for path, text in ((PAGE, page()), (SCHEMA, printed())):
        if not arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"config-docs: {path.relative_to(ROOT)} differs from the program's schema; run scripts/config-docs.py", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
