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
tier=$("$python" -c "from inflight import machine; print(machine.tier())") || exit
rounds=${ROUNDS:-3} gpt2="gpt2-124m-random" gpt2_size=() tax=() trace=() pair=(--requests 16) batches=()
text=(--tokens 5120)
if [[ -n ${SMALL:-} ]]; then
    export INFLIGHT_RESULTS=${INFLIGHT_RESULTS:-$PWD/build/results}
    mkdir -p "$INFLIGHT_RESULTS"
    rounds=1 gpt2="gpt2-tiny-random" gpt2_size=(--streams 2 --tokens 8)
    tax=(--requests 8) trace=(--dataset mild --requests 4 --max-batch-size 2) pair=(--requests 2) batches=(--requests 16) text=(--tokens 512)
fi
failed=()

measure() {
    echo "== inflight bench $* =="
    local started=$SECONDS
    "$python" -m inflight bench "$@" --save || failed+=("bench $*")
    echo "== $((SECONDS - started)) s =="
}

# What the models do on this device, from the inside out: an iteration, a batch of iterations, a server around them.
measure floor --rounds "$rounds"
measure compare V1 inflight_fused_batching --in-process --rounds "$rounds" "${trace[@]}"
measure compare guaranteed_no_evict max_utilization --in-process --kv-cache-tokens 1024 --rounds "$rounds" "${trace[@]}"
measure serving-tax --rounds "$rounds" "${tax[@]}"
measure compare V1 inflight_fused_batching --rounds "$rounds" "${trace[@]}"
measure compare llama-python ensemble --dataset dataset --rounds "$rounds" "${pair[@]}"
measure batchers --rounds "$rounds" "${batches[@]}"
measure gpt2 --checkpoint "$gpt2" --rounds "$rounds" "${gpt2_size[@]}"
measure quality "${text[@]}"
if [[ $tier == cuda ]]; then
    measure gpt2 --checkpoint gpt2-1.5b-random --rounds "$rounds"
else
    echo "The tier is $tier: GPT-2 with 1.5 billion parameters, which takes hours on a CPU, is left out." >&2
fi

echo "All in $((SECONDS / 60)) min $((SECONDS % 60)) s."
if ((${#failed[@]})); then
    printf 'error: this failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
