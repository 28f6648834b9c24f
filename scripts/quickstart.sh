#!/usr/bin/env bash
# From a fresh machine to a trained language model in about four minutes on two cores: installs packages, compiles the binary, prepares the novels of Jane
# Austen, trains on all three axes from configs/quickstart.yaml in a new run directory and writes a sample of text.
# Further arguments go to `trireme train`: ./scripts/quickstart.sh --max-steps 50
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
./scripts/corpus.sh data/quickstart/text
for part in train validation; do
  build/trireme data build --tokenizer bytes --output "data/quickstart/$part" "data/quickstart/text/$part.txt"
done

number=1
while [ -e "runs/quickstart-$number" ]; do number=$((number + 1)); done
run=runs/quickstart-$number
echo "quickstart: training configs/quickstart.yaml in $run"
started=$SECONDS
build/trireme train configs/quickstart.yaml --set "run.directory=$run" "$@"
echo "quickstart: trained for $((SECONDS - started)) seconds"

# metrics.jsonl: a line with "loss" is a training step, a line with "validation_loss" an evaluation.
awk '
  function value(key) { return match($0, "\"" key "\": *[-+.0-9eE]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : "" }
  value("loss") != "" { step[++steps] = value("step"); loss[steps] = value("loss") }
  value("validation_loss") != "" { validation_step[++validations] = value("step"); validation[validations] = value("validation_loss") }
  END {
    if (steps == 0) { print "quickstart: metrics.jsonl contains no training step" > "/dev/stderr"; exit 70 }
    width = steps < 72 ? steps : 72; height = 14; low = 1e30; high = -1e30
    for (x = 1; x <= width; ++x) {  # each column is the mean of its steps
      sum = count = 0
      for (i = int((x - 1) * steps / width) + 1; i <= int(x * steps / width); ++i) { sum += loss[i]; ++count }
      mean[x] = sum / count
      if (mean[x] < low) low = mean[x]
      if (mean[x] > high) high = mean[x]
    }
    range = high > low ? high - low : 1
    print "\ntraining loss, nats per byte"
    for (y = height; y >= 0; --y) {
      line = ""
      for (x = 1; x <= width; ++x) line = line (int((mean[x] - low) / range * height + 0.5) == y ? "*" : " ")
      sub(/ +$/, "", line)
      printf "%7.3f |%s\n", low + range * y / height, line
    }
    rule = ""
    for (x = 1; x <= width; ++x) rule = rule "-"
    printf "        +%s\n         step %d%*s\n\n", rule, step[1], width - 5 - length(step[1] ""), "step " step[steps]
    printf "first step: loss %.4f; last step: loss %.4f\n", loss[1], loss[steps]
    for (i = 1; i <= validations; ++i) printf "validation loss after step %d: %.4f\n", validation_step[i], validation[i]
  }' "$run/metrics.jsonl"

echo
echo "a sample of the model, prompted with \"It was\":"
build/trireme generate --checkpoint "$run/checkpoints/latest" --prompt "It was" --max-tokens 300 --temperature 0.8 --seed 1
cat <<NEXT

quickstart: done in $SECONDS seconds. What to type next:
  build/trireme generate --checkpoint $run --prompt "She said" --temperature 0.8    # another sample
  build/trireme verify configs/quickstart.yaml --layouts "tp2 pp2 dp2z3"            # proves that layouts train the same model
  build/trireme plan configs/llama-8b-8gpu.yaml                                     # forecasts a run on eight GPUs
  docs/getting-started.md                                                           # your own text, your own model
NEXT
