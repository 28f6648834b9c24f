#!/usr/bin/env bash
# Sets up, then runs the default test suite. Further arguments go to ctest: ./scripts/test.sh -R sampler
# The long tests: ctest --test-dir build -L slow
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh --tests
echo "test: running the default suite"
# Twice as many as there are cores: a third of the tests' time is waits for processes, not computing.
exec ctest --test-dir build -LE slow --output-on-failure --no-tests=error --parallel "$(($(nproc) * 2))" "$@"
