#!/usr/bin/env bash
# Everything that is measured on one or two GPUs, in about 25 minutes: tests, time to ready, time to first token by where
# the encoder is, decoding, gaps between tokens, fp8 beside bfloat16, transformers beside it all. Random weights of real
# dimensions. Each measurement leaves its JSON line in a file; what fails or takes too long is told and passed over.
#
#     bash bench/gpu.sh OUT_FOLDER [PYTHON]
set -u
out=${1:?where the results go} python=${2:-.venv/bin/python}
cd "$(dirname "$0")/.." && mkdir -p "$out" && out=$(cd "$out" && pwd)
export PYTHONPATH=$PWD
foveate="$python -m foveate.cli"
dummy="--load-format dummy --kernels triton --max-ctx 16384 --kv-tokens 147456"

try() { # NAME SECONDS COMMAND...: the last line of its output is the record
  local name=$1 limit=$2; shift 2
  echo "== $name ($(date +%T))"
  if timeout "$limit" "$@" > "$out/$name.out" 2> "$out/$name.err"; then
    tail -n 1 "$out/$name.out" > "$out/$name.json"; head -n -1 "$out/$name.out" | tail -n 12
  else
    echo "   failed ($?): $(tail -n 2 "$out/$name.err" | cut -c 1-300)"
  fi
}

for size in 4b 27b; do $python bench/make_dims.py "/tmp/qwen3_5-$size" $size; done
$python bench/make_dims.py /tmp/qwen3_5-4b-fp8 4b --fp8
$python bench/make_dims.py /tmp/qwen3_5-27b-fp8 27b --fp8

try tests 240 $python -m pytest -q -m "gpu or not gpu" tests/gpu tests/ops/test_triton_fp8.py tests/ops/test_frames.py
try start-4b 240 $foveate bench start --repeats 2 /tmp/qwen3_5-4b $dummy
try ttft-4b 300 $foveate bench ttft /tmp/qwen3_5-4b --repeats 4 $dummy
try decode-4b-text 120 $foveate bench decode /tmp/qwen3_5-4b --workload text --batches 1,2,4,8 --max-tokens 256 --repeats 2 $dummy
try decode-4b-charts 120 $foveate bench decode /tmp/qwen3_5-4b --workload charts --batches 1,2,4,8 --max-tokens 256 --repeats 2 $dummy
try decode-4b-fp8 120 $foveate bench decode /tmp/qwen3_5-4b-fp8 --workload text --batches 1,8 --max-tokens 256 --repeats 2 $dummy
try itl-4b 180 $foveate bench itl /tmp/qwen3_5-4b --load-format dummy --kernels triton --max-ctx 16384 --kv-tokens 262144
try start-27b 240 $foveate bench start --repeats 1 /tmp/qwen3_5-27b $dummy
try ttft-27b 300 $foveate bench ttft /tmp/qwen3_5-27b --ladder 1,16 --repeats 2 --no-beside $dummy
try decode-27b 150 $foveate bench decode /tmp/qwen3_5-27b --workload text --batches 1,8 --max-tokens 128 --repeats 2 $dummy
try decode-27b-fp8 150 $foveate bench decode /tmp/qwen3_5-27b-fp8 --workload text --batches 1,8 --max-tokens 128 --repeats 2 $dummy
try pictures 60 $python bench/picture_path.py --workers 1,4,16 --device cuda:0
try ttft-4b-screenshots 240 $foveate bench ttft /tmp/qwen3_5-4b --pictures screenshots --ladder 1,4 --repeats 2 $dummy
try load-4b 300 $python bench/load_time.py /tmp/qwen3_5-4b-files --size 4b --tree . --device cuda:0 --repeats 2
rm -rf /tmp/qwen3_5-4b-files
$python -c "import transformers" 2> /dev/null && try transformers-4b 300 $python bench/transformers_baseline.py /tmp/qwen3_5-4b \
  --device cuda:0 --dtype bfloat16 --ladder 1,4,16 --repeats 2 --tokens 64
echo "== done ($(date +%T))"
