#!/usr/bin/env python3
"""Holds docs/troubleshooting.md against the program: each message that it quotes is a string of the binary, and its exit codes are those of ExitCode.

The environment variable TRIREME names the binary; build/trireme by default. Messages of a part that this build lacks (CUDA) are looked up in the sources.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"


def quoted_messages(text):
    """Code in the first cell of the rows of tables headed by "message"."""
    messages, inside = [], False
    for line in text.split("\n"):
        if not line.startswith("|"):
            inside = False
        elif line.startswith("| message "):
            inside = True
        elif inside and (quoted := re.match(r"\| `([^`]+)` \|", line)):
            messages.append(quoted[1])
    return messages


def main():
    text = PAGE.read_text()
    binary = pathlib.Path(os.environ.get("TRIREME", ROOT / "build" / "trireme")).read_bytes()
    sources = "".join(path.read_text() for module in ("kernels", "parallel", "trainer") for path in (ROOT / module).rglob("*.cpp"))
    messages = quoted_messages(text)
    failures = [f"no message of the program contains {message!r}" for message in messages if message.encode() not in binary and message not in sources]
    if len(messages) < 20:
        failures.append(f"only {len(messages)} messages are quoted")
    declared = re.search(r"enum class ExitCode[^{]*\{(.*?)\};", (ROOT / "kernels/core/check.h").read_text(), re.S)[1]
    declared = {int(code) for code in re.findall(r"=\s*(\d+)", declared)}
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text[text.index("## Exit codes"):text.index("## Configuration and start")], re.M)}
    if declared != table:
        failures.append(f"exit codes {sorted(table)} are explained, the program has {sorted(declared)}")
    for failure in failures:
        print(f"docs/troubleshooting.md: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
