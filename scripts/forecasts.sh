#!/usr/bin/env bash
# Writes the forecast of each large run into its configuration, as a comment at its end. forecasts.sh [--check]: only says which are out of date.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${TRIREME:-build/trireme}
mark='# --- forecast: scripts/forecasts.sh'
stale=0
for config in configs/*gpu.yaml; do
  fresh=$(mktemp)
  sed "/^$(printf '%s' "$mark" | sed 's/[/.]/\\&/g')/,\$d" "$config" > "$fresh"
  { echo "$mark"; "$binary" plan "$config" --cluster H100 --nodes auto | sed -e 's/^/# /' -e 's/ *$//'; } >> "$fresh"
  if cmp -s "$fresh" "$config"; then
    rm "$fresh"
  elif [ "${1:-}" = --check ]; then
    echo "forecasts: $config is out of date" >&2
    stale=1
    rm "$fresh"
  else
    cat "$fresh" > "$config"
    rm "$fresh"
    echo "forecasts: $config"
  fi
done
exit $stale
