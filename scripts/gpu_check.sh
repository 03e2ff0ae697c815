#!/usr/bin/env bash
# Everything that docs/gpu.md models, measured once on a GPU. Output goes into a folder of text files.
#
#   bash scripts/gpu_check.sh [FOLDER]            default: gpu_check
#   PYTHON=.venv/bin/python VLLM_PYTHON=.venv-vllm/bin/python bash scripts/gpu_check.sh
#
# PYTHON needs this package with a CUDA build of torch. VLLM_PYTHON needs vLLM, too; without it, vLLM is left out.
# BASE and GUIDE name the pair (hub ids or folders) of the vLLM part; default: random weights of the Qwen3 shapes.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-gpu_check}
python=${PYTHON:-python}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu_check: $python sees no GPU (torch.cuda.is_available() is False); run it where there is one, with a CUDA build of torch" >&2
  exit 2
fi
mkdir -p "$folder"

part() { # NAME COMMAND…: runs a part into its file; a part that fails does not end the others
  local name=$1
  shift
  echo "== $name"
  if ! "$@" 2>"$folder/$name.err" | tee "$folder/$name.txt"; then
    echo "$name failed: see $folder/$name.err" | tee -a "$folder/failed"
  fi
}

rm -f "$folder/failed"
part machine nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
part tests "$python" -m pytest -q -rs tests/decoding/test_on_gpu.py
part parts "$python" benchmarks/gpu_parts.py
part costs "$python" benchmarks/pass_costs.py --device cuda --dtype bfloat16 --pair qwen3
part blocks "$python" benchmarks/blockwise.py --pair qwen3 --vocab 151936 --dtype bfloat16 --device cuda --batch 1 4 16
part modelled "$python" benchmarks/simulate.py
part modelled_by_load "$python" benchmarks/simulate.py --by_load
if [ -n "${VLLM_PYTHON:-}" ]; then
  if [ -n "${BASE:-}" ]; then pair=(--base "$BASE" --guide "${GUIDE:?give GUIDE with BASE}"); else pair=(--pair qwen3); fi
  for contender in fused drafts auto guide base; do # one engine at a time: each may take the whole GPU
    part "vllm_$contender" "$VLLM_PYTHON" benchmarks/vllm_engines.py "${pair[@]}" --dtype bfloat16 --graphs --contenders "$contender"
  done
else
  echo "VLLM_PYTHON is not set: vLLM is left out"
fi

if [ -e "$folder/failed" ]; then
  cat "$folder/failed"
  exit 1
fi
echo "done: $folder holds the figures. Put the line 'measured: Machine(…)' of costs.txt into lm_eval_takeover/decoding/costs.py."
