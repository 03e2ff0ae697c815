#!/usr/bin/env bash
# Everything that docs/gpu.md models, measured on a GPU, in three calls of at most ten minutes.
#
#   bash scripts/gpu_check.sh 1|2|3 [FOLDER]      default: gpu_check
#   PYTHON=.venv/bin/python VLLM_PYTHON=.venv-vllm/bin/python bash scripts/gpu_check.sh vllm
#   DEVICE=cpu bash scripts/gpu_check.sh 1        the same parts, small, where there is no GPU
#
# Each part has a limit in seconds. The most telling parts come first. FOLDER/gpu_check_CALL.tgz has the output of all parts so
# far and is written again after each. PYTHON needs this package with a CUDA build of torch; VLLM_PYTHON needs vLLM, too.
# Wheels in .gpu_wheels are installed first, for a machine without a network.
set -uo pipefail
cd "$(dirname "$0")/.."
call=${1:-}
[[ $call =~ ^(1|2|3|vllm)$ ]] || { echo "usage: bash scripts/gpu_check.sh 1|2|3|vllm [FOLDER]" >&2; exit 2; }
mkdir -p "${2:-gpu_check}"
folder=$(cd "${2:-gpu_check}" && pwd)
python=${PYTHON:-$(command -v python || command -v python3)}
device=${DEVICE:-cuda}
texts=$folder/call_$call
mkdir -p "$texts"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export RANDOM_PAIRS=${RANDOM_PAIRS:-${TMPDIR:-/tmp}/random_pairs}  # weights are made once for all parts
began=$SECONDS

pack() { tar czf "$folder/gpu_check_$call.tgz" -C "$texts" .; }

part() { # SECONDS NAME COMMAND…: a part that fails or takes too long does not end the others
  local limit=$1 name=$2 status=0
  shift 2
  echo "== $name (at $((SECONDS - began)) s, at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" >"$texts/$name.txt" 2>"$texts/$name.err" || status=$?
  tail -n 25 "$texts/$name.txt"
  [ "$status" = 0 ] || { echo "$name: exit status $status"; tail -n 3 "$texts/$name.err"; echo "$name $status" >>"$texts/failed"; }
  pack
}

rm -f "$texts/failed"
if [ -d .gpu_wheels ] && ! "$python" -c 'import lm_eval_takeover, lm_eval' 2>/dev/null; then
  "$python" -m pip install -q --no-index --no-deps --no-compile .gpu_wheels/*.whl
  "$python" -m pip install -q --no-index --no-deps --no-build-isolation -e .
fi
if ! found=$("$python" -c "import torch; print(torch.cuda.is_available() or '$device' == 'cpu')" 2>&1); then
  echo "gpu_check: '$python' has no torch: $(tail -n 1 <<<"$found"); name another one by PYTHON" >&2
  exit 2
elif [ "$found" != True ]; then
  echo "gpu_check: '$python' sees no GPU (torch.cuda.is_available() is False); it needs a CUDA build of torch, or DEVICE=cpu" >&2
  exit 2
fi
part 30 machine bash -c "nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv; '$python' -m pip list; df -h / /tmp; free -g"

pytest=("$python" -m pytest -q -rs -p no:cacheprovider -p no:randomly -W default)
if [ "$device" = cpu ]; then
  small=(--device cpu --pair demo --dtype float32) shape=(--device cpu --pair demo --dtype float32 --batch 1 --rounds 1)
  long=(--rows 2 --columns 256 --tokens 24) few=(--rows 1 --columns 256 --rounds 1) batches=(--batch 1 4 --tokens 32 --rounds 1)
else
  small=(--device cuda --pair qwen3 --dtype bfloat16) long=() few=(--rounds 5) batches=()
  shape=(--device cuda --pair qwen3 --vocab 151936 --dtype bfloat16 --batch 1 8 --rows 1 --rounds 1 --entropy 0.5)
fi
case $call in
1)
  part 120 tests "${pytest[@]}" tests/decoding/test_on_gpu.py
  part 60 demo "$python" -m lm_eval --model guided-takeover --model_args "device=$device,spike_ratio=0.045" \
    --tasks takeover_demo --limit 4 --batch_size 32
  part 150 parts "$python" benchmarks/gpu_parts.py "${small[@]}" "${few[@]}"
  part 150 costs "$python" benchmarks/pass_costs.py "${small[@]}" --rounds 5
  ;;
2)
  part 250 long "$python" benchmarks/gpu_long.py "${small[@]}" "${long[@]}"
  [ "$device" = cpu ] || part 280 kernels "${pytest[@]}" -n 8 tests/kernels
  ;;
3)
  part 120 batches "$python" benchmarks/gpu_batches.py "${small[@]}" "${batches[@]}"
  part 400 blocks "$python" benchmarks/blockwise.py "${shape[@]}"
  ;;
vllm)
  if [ -n "${BASE:-}" ]; then pair=(--base "$BASE" --guide "${GUIDE:?give GUIDE with BASE}"); else pair=(--pair qwen3); fi
  for contender in fused drafts auto guide base; do # one engine at a time: each may take the whole GPU
    part 110 "vllm_$contender" "${VLLM_PYTHON:?name a Python with vLLM}" benchmarks/vllm_engines.py "${pair[@]}" \
      --dtype bfloat16 --graphs --contenders "$contender"
  done
  ;;
esac
echo "$folder/gpu_check_$call.tgz has the output, after $((SECONDS - began)) s"
if [ -e "$texts/failed" ]; then
  echo "failed: $(tr '\n' ';' <"$texts/failed")"
  exit 1
fi
