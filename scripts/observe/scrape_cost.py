#!/usr/bin/env python3
"""What scrapes of /metrics cost a running job: the duration of its steps in windows with and without scrapes, which alternate.

  scripts/observe/scrape_cost.py RUN URL [SCRAPES [PER_SECOND [SECONDS]]]     1,000 scrapes, 10 per second, windows of 5 seconds by default

RUN is the run directory of the job, URL its endpoint. Reads metrics.jsonl at the end and prints, over all pairs of neighbouring windows, the mean ratio
of the median step durations with its standard error, and the same for the mean step durations; and the processor time of the server's thread for each
scrape, which bounds what a scrape can take from a step and does not depend on what else the machine does. The answers are parsed after the measurement,
if prometheus_client is installed.
"""
import datetime
import json
import math
import pathlib
import socket
import statistics
import sys
import time
import urllib.parse


def scrape(host, port):
    with socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def steps_of(run):
    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        if "loss" in fields:
            yield datetime.datetime.fromisoformat(fields["time"].replace("Z", "+00:00")).timestamp(), fields["step_seconds"]


def server_seconds():
    """Processor time of all threads of this user that serve metrics."""
    total = 0
    for task in pathlib.Path("/proc").glob("[0-9]*/task/*"):
        try:
            if (task / "comm").read_text() == "metrics http\n":
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # another user's, or it has just ended
            continue
    return total


def ratio(pairs):
    logs = [math.log(a / b) for a, b in pairs]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{100 * (math.exp(statistics.fmean(logs)) - 1):+.2f} % +- {100 * error:.2f} %"


def main(arguments):
    if not 2 <= len(arguments) <= 5:
        print(__doc__, file=sys.stderr)
        return 64
    run, address = pathlib.Path(arguments[0]), urllib.parse.urlsplit(arguments[1])
    scrapes, rate, seconds = [float(arguments[2 + i]) if len(arguments) > 2 + i else default for i, default in enumerate((1000, 10, 5))]
    answers, windows, longest, before_all = [], [], 0, server_seconds()
    while len(answers) < scrapes:
        begin = time.time()
        for number in range(round(rate * seconds)):
            time.sleep(max(0, begin + number / rate - time.time()))
            before = time.time()
            answers.append(scrape(address.hostname, address.port))
            longest = max(longest, time.time() - before)
        middle = begin + seconds
        time.sleep(max(0, middle + seconds - time.time()))
        windows.append((begin, middle, middle + seconds))
    per_scrape = (server_seconds() - before_all) / len(answers)
    steps = list(steps_of(run))
    pairs = []
    for begin, middle, end in windows:
        # A step belongs to the window in which it ran from its beginning to its end.
        pairs.append([[s for t, s in steps if low <= t - s and t <= high] for low, high in ((begin, middle), (middle, end))])
    counted = sum(len(window) for pair in pairs for window in pair)
    pairs = [pair for pair in pairs if min(map(len, pair)) >= 10]
    print(f"{len(answers)} scrapes of {len(answers[-1])} bytes, the longest {1e3 * longest:.1f} ms; {counted} steps in {len(pairs)} pairs of windows")
    print("median step, with against without scrapes:", ratio([[statistics.median(w) for w in pair] for pair in pairs]))
    print("mean step, with against without scrapes:  ", ratio([[statistics.fmean(w) for w in pair] for pair in pairs]))
    print(f"processor time of the server: {1e6 * per_scrape:.0f} us per scrape, {100 * per_scrape:.4f} % of a core at one scrape per second")
    whole = all(answer.startswith(b"HTTP/1.1 200 OK\r\n") for answer in answers)
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("the answers were not parsed: prometheus_client is not installed")
    else:
        samples = sum(len(f.samples) for a in answers for f in text_string_to_metric_families(a.split(b"\r\n\r\n", 1)[1].decode()))
        print(f"prometheus_client accepts all answers: {samples} samples")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
