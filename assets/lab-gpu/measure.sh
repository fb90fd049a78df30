#!/usr/bin/env bash
# All of the course's benchmarks on this machine: each result is a JSON in assets/results, named by benchmark, model and
# device. On a lab GPU it takes less than 10 minutes; without a GPU the large models are left out.
#
#   assets/lab-gpu/measure.sh             # from any folder, after `make setup`
#   SMALL=1 assets/lab-gpu/measure.sh     # a short run to see that all of it works; its results go to build/results
#
# PYTHON names the interpreter that has the course's packages, ROUNDS how often the sides of a ratio take turns.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
python=${PYTHON:-.venv/bin/python}
read -r tier device < <("$python" -c "from inflight import machine, tiers; print(tiers.here().name, '-'.join(machine.device_name().lower().split()))") || exit
results=assets/results rounds=${ROUNDS:-3} gpt2="gpt2-124m-random" gpt2_size=() trace=() pair=(--requests 16) batches=()
text=(--tokens 5120) default=smollm2-135m-instruct
if [[ -n ${SMALL:-} ]]; then
    results=build/results
    mkdir -p "$results"
    rounds=1 gpt2="gpt2-tiny-random" gpt2_size=(--streams 2 --tokens 8)
    trace=(--dataset mild --requests 4 --max-batch-size 2) pair=(--requests 2) batches=(--requests 16) text=(--tokens 512)
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
measure "batchers_$default" batchers --rounds "$rounds" "${batches[@]}"
measure "gpt2_$gpt2" gpt2 --checkpoint "$gpt2" --rounds "$rounds" "${gpt2_size[@]}"
measure "quality_$default" quality "${text[@]}"
if [[ $tier == cuda ]]; then
    measure gpt2_gpt2-1.5b-random gpt2 --checkpoint gpt2-1.5b-random --rounds "$rounds"
else
    echo "The tier is $tier: GPT-2 with 1.5 billion parameters, which takes hours on a CPU, is left out." >&2
fi

echo "All in $((SECONDS / 60)) min $((SECONDS % 60)) s."
if ((${#failed[@]})); then
    printf 'error: this failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
