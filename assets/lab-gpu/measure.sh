#!/usr/bin/env bash
# The course's comparisons on this machine: each result is a JSON in build/results, named by benchmark, model and device.
#
#   assets/lab-gpu/measure.sh             # from any folder, after `make setup`
#   SMALL=1 assets/lab-gpu/measure.sh     # a short run to see that all of it works
#
# PYTHON names the interpreter that has the course's packages, ROUNDS how often the sides of a ratio take turns.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
python=${PYTHON:-.venv/bin/python}
device=$("$python" -c "from inflight import machine; print('-'.join(machine.device_name().lower().split()))") || exit
results=build/results rounds=${ROUNDS:-3} trace=() pair=(--requests 16) text=(--tokens 5120) default=smollm2-135m-instruct
mkdir -p "$results"
if [[ -n ${SMALL:-} ]]; then
    rounds=1 trace=(--dataset mild --requests 4 --max-batch-size 2) pair=(--requests 2) text=(--tokens 768)
fi
failed=()

# measure NAME_MODEL COMMAND...
measure() {
    local file="$results/${1}_$device.json"
    shift
    echo "== inflight bench $* =="
    local started=$SECONDS
    "$python" -m inflight bench "$@" --json > "$file.part" && mv "$file.part" "$file" || failed+=("bench $*")
    echo "== $((SECONDS - started)) s, $file =="
}

measure "compare-in-process-ensemble_$default" compare in-process ensemble --concurrency 8 --rounds "$rounds" "${trace[@]}"
measure "compare-V1-inflight_fused_batching_$default" compare V1 inflight_fused_batching --rounds "$rounds" "${trace[@]}"
measure "compare-llama-python-ensemble_$default" compare llama-python ensemble --dataset dataset --rounds "$rounds" "${pair[@]}"
measure "quality_$default" quality "${text[@]}"

echo "All in $((SECONDS / 60)) min $((SECONDS % 60)) s."
if ((${#failed[@]})); then
    printf 'error: this failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
