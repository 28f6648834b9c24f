#!/usr/bin/env python3
"""Scrapes the /metrics endpoint of a running job and parses each answer with Prometheus' own client. Needs `pip install prometheus_client`.

  scripts/observe/check_prometheus.py URL [SCRAPES [PER_SECOND]]      1,000 scrapes at 100 per second by default
  scripts/observe/check_prometheus.py FILE                            parses a textfile once

Exits 1 if an answer fails, does not parse, or does not name a step.
"""
import sys
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def step_of(text):
    samples = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    return samples.get("trireme_step")


def main(arguments):
    if not 1 <= len(arguments) <= 3:
        print(__doc__, file=sys.stderr)
        return 64
    if "://" not in arguments[0]:
        with open(arguments[0], encoding="utf-8") as file:
            print(f"step {step_of(file.read()):.0f}")
        return 0
    scrapes = int(arguments[1]) if len(arguments) > 1 else 1000
    pause = 1 / float(arguments[2]) if len(arguments) > 2 else 0.01
    steps, seconds, failed = [], [], 0
    begin = time.monotonic()
    for number in range(scrapes):
        time.sleep(max(0, begin + number * pause - time.monotonic()))
        before = time.monotonic()
        try:
            with urllib.request.urlopen(arguments[0], timeout=5) as answer:
                text = answer.read().decode()
            seconds.append(time.monotonic() - before)
            step = step_of(text)
            if step is not None:
                steps.append(step)
        except Exception as error:  # of the network or of the parser
            failed += 1
            print(f"scrape {number}: {error}", file=sys.stderr)
    if not steps or failed or sorted(steps) != steps:
        print(f"{failed} of {scrapes} scrapes failed; {len(steps)} named a step", file=sys.stderr)
        return 1
    seconds.sort()
    print(f"{scrapes} scrapes, steps {steps[0]:.0f} to {steps[-1]:.0f}, {1e3 * seconds[len(seconds) // 2]:.2f} ms median, "
          f"{1e3 * seconds[-1]:.2f} ms longest")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
