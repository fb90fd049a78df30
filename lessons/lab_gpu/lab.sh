#!/usr/bin/env bash
# NVIDIA's Triton with a TensorRT-LLM engine, step by step. What each step is for stands in README.md beside this file.
#
#     lab.sh fetch && lab.sh start && lab.sh check            a model, a container, a look around
#     lab.sh convert && lab.sh build                          lesson 01
#     lab.sh fill inflight_fused_batching guaranteed_no_evict True     lesson 02
#     lab.sh launch && lab.sh ready && lab.sh query           lesson 03
#     lab.sh measure && lab.sh iterations                     lesson 04
#     lab.sh stop && lab.sh remove                            the server, then the container
#
# A step alone, in a shell of your own: source lab.sh, then call it. This file is written from lessons/lab_gpu/lab.sh
# and the table of commands in inflight/engine/trtllm_commands.py: `python -m tools.lab_gpu` makes it anew.

# Settings: give others before the command, or export them.
IMAGE=${IMAGE:-{{name.image}}}
RUNTIME=${RUNTIME-docker}                # docker or podman; empty: this shell is in the container already
DEVICES=${DEVICES:-all}                  # one GPU of several: device=0 with docker, 0 with podman
LAB=${LAB:-$HOME/triton-lab}             # the folder on this machine that is /lab in the container
MODEL_ID=${MODEL_ID:-{{name.model_id}}}
FAMILY=${FAMILY:-llama}                  # llama or gpt
PRECISION=${PRECISION:-float16}          # float16, bfloat16, int8, int4 (weights only) or fp8 (Hopper and Ada)
GPUS=${GPUS:-1}                          # that share the model: tp_size when converting, world_size when launching
SLOTS=${SLOTS:-8}                        # seats: max_batch_size of the engine
MAX_NUM_TOKENS=${MAX_NUM_TOKENS:-4096}   # of an iteration, prompts and answers of all seats together
READY_SECONDS=${READY_SECONDS:-300}      # how long a model may take to load
case $FAMILY in                          # MAX_SEQ_LEN: tokens of a prompt and its answer
gpt) MAX_SEQ_LEN=${MAX_SEQ_LEN:-1024} ;;
*) MAX_SEQ_LEN=${MAX_SEQ_LEN:-2048} ;;
esac
case $MODEL_ID in                        # REVISION: what is downloaded is what was meant
{{name.model_id}}) REVISION=${REVISION:-{{name.model_revision}}} ;;
*) REVISION=${REVISION:-main} ;;
esac

# Places, as the container sees them. With the image 24.10 the backend's sources are a clone in $LAB: README.md.
INSIDE=/lab
[ -n "$RUNTIME" ] || INSIDE=$LAB
APP=${APP:-/app}
EXAMPLES=${EXAMPLES:-$APP/examples}
CLIENTS=${CLIENTS:-$APP/client}
MODEL=${MODEL:-$INSIDE/models/hf}
MODEL_HERE=$LAB${MODEL#"$INSIDE"}        # the same folder, as this machine sees it
CHECKPOINT=$INSIDE/checkpoint
ENGINE=$INSIDE/engine
REPO=$INSIDE/repo
LOGS=$INSIDE/logs
TEXTS=$INSIDE/datasets/cnn_dailymail
DATASET=$INSIDE/datasets/mini_cnn_eval.json

# Runs a command in the container.
inside() {
    if [ -n "$RUNTIME" ]; then "$RUNTIME" exec {{name.container}} "$@"; else "$@"; fi
}

# Runs a server there and comes back at once; what it prints is in logs/launch.log. With `set -m` it hears the signal
# that `stop` sends: what a shell leaves running otherwise ignores it.
inside_on_its_own() {
    if inside pgrep -x tritonserver >/dev/null; then
        echo "A Triton is running already. End it first: lab.sh stop" >&2
        return 1
    fi
    inside mkdir -p "$LOGS"
    inside rm -f "$LOGS/triton.log"
    # shellcheck disable=SC2016  # the container's shell expands these
    inside bash -c 'set -m; "$@" >"$0" 2>&1 </dev/null &' "$LOGS/launch.log" "$@"
}

# Fetches the checkpoint, and for FP8 texts to calibrate with. On a machine with internet; then carry $LAB over.
fetch() {
    {{command.fetch}}
    if [ "$PRECISION" = fp8 ]; then
        {{command.fetch_texts}}
    fi
}

# Starts the container. Nothing runs in it yet.
start() {
    [ -n "$RUNTIME" ] || { echo "RUNTIME is empty: there is nothing to start." >&2; return 2; }
    mkdir -p "$LAB/models" "$LAB/datasets"  # as yours: the runtime would make them as root
    case $RUNTIME in
    podman)
        {{command.start_podman}} ;;
    *)
        {{command.start_docker}} ;;
    esac
}

# Shows the settings and what there is: GPU, driver, TensorRT-LLM's version, the templates. In the last line 0: those of
# tag v0.18.2.
check() {
    echo "$IMAGE, $LAB: $MODEL_ID ($FAMILY), $PRECISION, $GPUS GPU(s), $SLOTS seats, $MAX_SEQ_LEN tokens"
    inside nvidia-smi
    inside python3 -c 'import tensorrt_llm; print("TensorRT-LLM", tensorrt_llm.__version__)'
    inside ls "$APP/all_models/inflight_batcher_llm" "$EXAMPLES/$FAMILY/convert_checkpoint.py" "$MODEL/config.json"
    inside grep -c return_perf_metrics "$APP/all_models/inflight_batcher_llm/ensemble/config.pbtxt" || true
}

# Turns the checkpoint into TensorRT-LLM's. Decided here: the precision, and over how many GPUs the model is split.
convert() {
    inside rm -rf "$CHECKPOINT"
    case $PRECISION in
    float16 | bfloat16)
        inside {{command.convert}} ;;
    int8 | int4)
        inside {{command.convert_weight_only}} ;;
    fp8)
        [ "$FAMILY" = llama ] || { echo "FP8 is for the family llama here." >&2; return 2; }
        inside {{command.quantize_fp8}} ;;
    *)
        echo "PRECISION is $PRECISION: choose float16, bfloat16, int8, int4 or fp8." >&2
        return 2 ;;
    esac
}

# Builds the engine: minutes. Decided here: the seats, the longest request, the tokens of an iteration.
build() {
    inside rm -rf "$ENGINE"
    if [ "$PRECISION" = fp8 ]; then
        inside {{command.build_fp8}}
    else
        inside {{command.build}}
    fi
    inside ls -l "$ENGINE"
}

# Fills one template: fill_model MODEL variable:value … It passes on only the variables that this template has.
fill_model() {
    local file=$REPO/$1/config.pbtxt template pair pairs=
    template=$(inside cat "$file")
    for pair in "${@:2}"; do
        if [[ $template == *"\${${pair%%:*}}"* ]]; then pairs+=${pairs:+,}$pair; fi
    done
    if [ -n "$pairs" ]; then
        inside {{command.fill}}
    fi
}

# Makes the repository anew: fill TYPE POLICY DECOUPLED QUEUE_DELAY_US [variable:value of tensorrt_llm …]
fill() {
    local type=${1:-inflight_fused_batching} policy=${2:-guaranteed_no_evict} decoupled=${3:-True} delay=${4:-0}
    inside rm -rf "${REPO:?}"
    inside cp -r "$APP/all_models/inflight_batcher_llm" "$REPO"
    inside rm -rf "$REPO/tensorrt_llm_bls"
    fill_model ensemble {{fill.ensemble}}
    fill_model preprocessing {{fill.preprocessing}}
    fill_model postprocessing {{fill.postprocessing}}
    fill_model tensorrt_llm {{fill.tensorrt_llm}} "${@:5}"
    # What is left outside quotes would make a file unreadable: name it, and fail.
    if inside grep -nE '^[^"#]*\$\{' "$REPO"/{ensemble,preprocessing,tensorrt_llm,postprocessing}/config.pbtxt; then
        echo "Give these variables a value: fill … variable:value" >&2
        return 1
    fi
}

# Starts Triton on all $GPUS. It returns at once: see ready.
launch() {
    inside_on_its_own {{command.launch}}
}

# Starts Triton on one GPU without the launcher: only so can a running server load a model again.
serve() {
    inside_on_its_own {{command.serve}}
}

# Waits until every model is READY; otherwise shows the end of the logs, and fails.
ready() {
    local end=$((SECONDS + READY_SECONDS))
    until {{command.ready}}; do
        if [ "$SECONDS" -ge "$end" ] || { inside test -e "$LOGS/triton.log" && ! inside pgrep -x tritonserver >/dev/null; }; then
            echo "Triton is not ready. The ends of logs/launch.log and logs/triton.log:" >&2
            inside tail -n 20 "$LOGS/launch.log" "$LOGS/triton.log" >&2
            return 1
        fi
        sleep 2
    done
    echo "READY"
}

# Writes a text as it stands in JSON between quotes.
in_json() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '%s' "${text//$'\n'/\\n}"
}

# Asks a question, one answer: query ["PROMPT" [TOKENS]]
query() {
    local PROMPT LENGTH=${2:-64}
    PROMPT=$(in_json "${1:-What is the capital of France?}")
    {{command.query}}
}

# The same as a stream; the repository was filled with DECOUPLED True.
stream() {
    local PROMPT LENGTH=${2:-64}
    PROMPT=$(in_json "${1:-What is the capital of France?}")
    {{command.stream}}
}

# Sends 100 articles at once and prints requests and tokens a second; the repository was filled with DECOUPLED False. What
# the client needs is fetched from PyPI the first time; the container's Python belongs to its system, hence the variable.
measure() {
    mkdir -p "$LAB/datasets"
    cp "$(dirname "${BASH_SOURCE[0]}")/../datasets/mini_cnn_eval.json" "$LAB/datasets/"
    inside python3 -c 'import pandas, tabulate, tritonclient.grpc, tritonclient.http' 2>/dev/null ||
        inside env PIP_BREAK_SYSTEM_PACKAGES=1 pip3 install --quiet 'tritonclient[all]' pandas tabulate
    inside {{command.measure}}
}

# Shows one line of statistics for each iteration, in JSON, from the log.
iterations() {
    inside grep '"Iteration Counter"' "$LOGS/triton.log"
}

# Ends the server, and waits until it is gone: requests that are under way may finish.
stop() {
    local end=$((SECONDS + 60))
    inside pkill -INT -x tritonserver || true
    while inside pgrep -x tritonserver >/dev/null; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "Triton is still there after a minute. End it with its container: lab.sh remove" >&2
            return 1
        fi
        sleep 1
    done
}

# Removes the container. What is in $LAB stays.
remove() {
    "$RUNTIME" rm --force {{name.container}}
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    case ${1:-} in
    fetch | start | check | convert | build | fill | launch | serve | ready | query | stream | measure | iterations | stop | remove)
        "$@" ;;
    *)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
        exit 2 ;;
    esac
fi
