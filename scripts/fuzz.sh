#!/usr/bin/env bash
# Fuzzes the readers of files that may be damaged or hostile, with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#   ./scripts/fuzz.sh                          each target for 60 seconds
#   ./scripts/fuzz.sh 600 safetensors tokens   these, for 600 seconds each
# Starts from tests/fuzz/corpus/TARGET, which it leaves alone, and from what earlier runs found in build/fuzz/corpus/TARGET. An input that a reader
# does not survive lies in build/fuzz/findings/TARGET-*; once that is mended, it belongs in tests/fuzz/corpus. Exits 1 if there is one.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
all=(safetensors manifest tokens foreign_tokens tokenizer huggingface black_box json_lines run_folder)
[[ $# -gt 0 ]] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [[ -f tests/fuzz/fuzz_$target.cpp ]] || { echo "fuzz: $target: no such target; there are: ${all[*]}" >&2; exit 64; }
done
for target in huggingface json_lines run_folder; do
  [[ " ${targets[*]} " != *" $target "* || -f build/libtrireme_trainer.a ]] || { echo "fuzz: $target links ./build; run ./scripts/setup.sh first" >&2; exit 66; }
done
clang=$(command -v clang++ || command -v clang++-{19,18,17,16,15,14} | head -n 1 || true)
[[ -n $clang ]] || { echo "fuzz: clang++ is not installed; on Debian and Ubuntu: apt-get install clang" >&2; exit 69; }

# The readers and no more: neither MPI nor oneDNN. What the parameter table of huggingface leads to, and what reads runs, comes from ./build, without
# instruments.
files=(kernels/core/writable_file.cpp trainer/files/{digest,durable_file,json_lines,mapped_file,open_file_limit,strict_json}.cpp tests/fuzz/{libfuzzer,scratch}.cpp)
sources_of() {  # target -> the readers it links
  case $1 in
    safetensors | manifest) echo trainer/checkpoint/{manifest,safetensors}.cpp ;;
    tokens) echo trainer/data/token_file.cpp ;;
    foreign_tokens) echo trainer/data/{token_file,token_source,foreign_tokens}.cpp ;;
    tokenizer) echo trainer/tokenizer/{added_tokens,byte_pair,merge_table,oniguruma,pretokenizer,sentencepiece_stub,tokenizer,tokenizer_json,utf8}.cpp ;;
    black_box) echo trainer/resilience/black_box_decode.cpp parallel/comm/{black_box,progress}.cpp ;;
    json_lines) echo trainer/run/metrics_sink.cpp trainer/resilience/job_record.cpp trainer/report/slurm_tries.cpp ;;
    run_folder) echo trainer/report/{comparison,config_rows,csv,goodput,goodput_report,page,page_sections,run_facts,run_plots,run_record,series,slurm_tries}.cpp trainer/resilience/job_record.cpp ;;
    huggingface) echo trainer/checkpoint/{box_copy,safetensors}.cpp trainer/huggingface/{config,names,reader}.cpp ;;
  esac
}
libraries_of() {
  case $1 in
    tokenizer) echo -lpcre2-8 -lutf8proc ;;
    huggingface | json_lines | run_folder)
      echo build/libtrireme_{trainer,parallel,kernels}.a -lyaml-cpp -ldnnl -lgomp -lpcre2-8 -lutf8proc "$(mpicxx --showme:link)" \
           "$(pkg-config --silence-errors --libs sentencepiece)"
      ;;
  esac
}
flags=(-std=c++20 -O1 -g -fno-omit-frame-pointer -I. -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
build=build/fuzz
mkdir -p $build/{objects,findings}
scratch=$(mktemp -d -p "$([[ -d /dev/shm ]] && echo /dev/shm || echo /tmp)" trireme-fuzz-XXXXXX)  # libFuzzer leaves some processes without a farewell
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
compile() {  # source -> object, where the source or a header is newer
  local object=$build/objects/${1//\//-}.o
  local headers=(kernels/core/*.h parallel/param.h parallel/comm/{black_box,progress}.h trainer/resilience/black_box_file.h trainer/{checkpoint,config,data,files,huggingface,model,tokenizer}/*.h tests/fuzz/*.h)
  if [[ ! -f $object || -n $(find "$1" "${headers[@]}" -newer "$object" -print -quit) ]]; then
    echo "fuzz: compiling $1" >&2
    "$clang" "${flags[@]}" -c "$1" -o "$object"
  fi
  echo "$object"
}
printf '%-14s %12s %8s %8s %8s %9s\n' target executions seconds edges corpus findings > $build/table
status=0
for target in "${targets[@]}"; do
  program=$build/fuzz_$target corpus=$build/corpus/$target log=$build/$target.log
  objects=()
  for source in "${files[@]}" $(sources_of "$target") "tests/fuzz/fuzz_$target.cpp"; do
    object=$(compile "$source")
    objects+=("$object")
  done
  # shellcheck disable=SC2046
  "$clang" -fsanitize=fuzzer,address,undefined "${objects[@]}" $(libraries_of "$target") -lxxhash -o "$program"
  mkdir -p "$corpus"
  echo "fuzz: $target for $seconds s; log in $log" >&2
  started=$SECONDS
  "$program" "$corpus" "tests/fuzz/corpus/$target" -dict="tests/fuzz/$target.dict" -max_total_time="$seconds" -max_len=4096 \
    -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$build/findings/$target-" -print_final_stats=1 > "$log" 2>&1 \
    || { status=1; tail -n 40 "$log" >&2; }
  took=$((SECONDS - started))
  # What covers the same code goes.
  rm -rf "$corpus.merged"
  mkdir "$corpus.merged"
  if "$program" -merge=1 "$corpus.merged" "$corpus" >> "$log" 2>&1; then
    rm -rf "$corpus"
    mv "$corpus.merged" "$corpus"
  fi
  printf '%-14s %12s %8s %8s %8s %9s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$took" \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | sort -n | tail -n 1)" "$(ls "$corpus" | wc -l)" \
    "$(find $build/findings -name "$target-*" | wc -l)" >> $build/table
done
cat $build/table
exit $status
