#!/usr/bin/env bash
# Compares byte-level BPE encoding on one core with the Python package `tokenizers`, alternately. Encodes the lines of the quickstart's corpus and of the
# golden tests one by one. Prints a table of MB per second of CPU time, medians over rounds; Trireme starts each round with an empty cache.
#   scripts/bench/tokenizer.sh --python PROGRAM [--corpus FILE] [--rounds N] [TOKENIZER.json...]
# PROGRAM is a Python with `tokenizers` installed; FILE is any text (default: that of scripts/corpus.sh). Default tokenizers: those of the golden tests,
# and one with 32,000 tokens trained by `tokenizers` on the corpus. Fails if the two programs produce different ids.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..

python=
corpus=
rounds=5
tokenizers=()
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    --corpus) corpus=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "tokenizer: unknown option $1; see --help" >&2; exit 64 ;;
    *) tokenizers+=("$1"); shift ;;
  esac
done
if ! "${python:-false}" -c 'import tokenizers' 2>/dev/null; then
  echo "tokenizer: --python PROGRAM: needs a Python with tokenizers installed" >&2
  exit 64
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$corpus" ]; then
  "$root/scripts/corpus.sh" "$work/corpus" >&2
  corpus=$work/corpus/train.txt
fi

sources=("$here/tokenizer.cpp"
  "$root"/trainer/tokenizer/{added_tokens,byte_pair,merge_table,oniguruma,pretokenizer,sentencepiece_stub,tokenizer,tokenizer_json,utf8}.cpp
  "$root"/trainer/files/{digest,durable_file,mapped_file,strict_json}.cpp)
g++ -std=c++20 -O3 -DNDEBUG -I"$root" "${sources[@]}" -lpcre2-8 -lutf8proc -lxxhash -o "$work/tokenizer"

TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 "$python" - "$work" "$root/tests/golden/tokenizers" "$corpus" "$rounds" "${tokenizers[@]}" <<'PYTHON'
import array, json, os, statistics, subprocess, sys, time

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

work, golden, corpus, rounds, *names = sys.argv[1:]
rounds = int(rounds)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if not names:
    trained = Tokenizer(models.BPE(ignore_merges=True))
    trained.pre_tokenizer = Tokenizer.from_file(golden + "/llama3.json").pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    trained.train([corpus], trainers.BpeTrainer(vocab_size=32000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    trained.save(work + "/llama3_32k.json")
    names = [f"{golden}/{name}.json" for name in ("gpt2", "llama3", "qwen2", "steps")] + [work + "/llama3_32k.json"]
with open(golden + "/lines.json", encoding="utf-8") as file, open(work + "/golden.txt", "w", encoding="utf-8", newline="") as out:
    for line in json.load(file)["lines"]:
        out.write(line.replace("\n", "\r") + "\n")

print(f"{'tokenizer':<18} {'text':<10} {'MB':>6} {'ids':>9} {'Trireme MB/s':>13} {'tokenizers MB/s':>16} {'ratio':>6}")
for name in names:
    tokenizer = Tokenizer.from_file(name)
    batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, if supported
    for text, path in (("corpus", corpus), ("golden", work + "/golden.txt")):
        with open(path, encoding="utf-8", newline="") as file:
            lines = file.read().split("\n")
        if not lines[-1]:
            lines.pop()
        ours, theirs = [], []
        for _ in range(rounds):
            result = json.loads(subprocess.run([work + "/tokenizer", name, path, work + "/ids"], check=True, capture_output=True).stdout)
            ours.append(result["seconds"])
            begin = time.process_time()
            encodings = batch(lines, add_special_tokens=False)
            theirs.append(time.process_time() - begin)
        ids = array.array("i", (i for encoding in encodings for i in encoding.ids))
        with open(work + "/ids", "rb") as file:
            if file.read() != ids.tobytes():
                sys.exit(f"tokenizer: {name}: Trireme and tokenizers produce different ids for {path}")
        size = result["bytes"] / 1e6
        mine, yours = size / statistics.median(ours), size / statistics.median(theirs)
        label = os.path.basename(name).removesuffix(".json")
        print(f"{label:<18} {text:<10} {size:>6.2f} {len(ids):>9} {mine:>13.1f} {yours:>16.1f} {mine / yours:>6.1f}", flush=True)
PYTHON
