#!/usr/bin/env bash
# GPT-2 behind Triton on this machine, in one go: writes assets/results/gpt2_<checkpoint>_<machine>.json.
# Options, such as --rounds 5, go to `inflight bench gpt2`. PYTHON names the interpreter that has the course's packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv/bin/python}

"$python" -m inflight bench gpt2 --checkpoint gpt2-124m-random --save "$@"
if "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    "$python" -m inflight bench gpt2 --checkpoint gpt2-1.5b-random --save "$@"
else
    echo "PyTorch sees no GPU here: gpt2-1.5b-random, which takes hours on a CPU, is left out." >&2
fi
