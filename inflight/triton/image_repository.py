"""The model repository of NVIDIA's image: its own templates, filled with the settings of ours.

The four models of the TensorRT-LLM backend have the names, inputs and outputs of the course's, and are other programs.
So their configs come from the image, never from the course, and take from ours what a learner sets: the batching type,
the policy, the limits of the KV cache, whether answers are streamed. Places are those of the image's own engine.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.containers import Image, Runtime
from inflight.engine import in_container
from inflight.engine.trtllm_commands import CONTAINER, MODELS, template_values
from inflight.errors import CourseError
from inflight.triton import repository

ENGINE = "tensorrt_llm"
PLACES = ("_path", "_dir", "_file")  # how parameters end that name files of the machine where Triton runs
# Of what the templates take, that ours has under another name, or gives by itself.
ASKED_FOR = ("gpt_model_type", "batch_scheduler_policy", "gpt_model_path", "iteration_log_path")
TIMEOUT_S = 120


def make(runtime: Runtime, image: Image, ours: Path, target: Path) -> Path:
    """Fill the templates of `image` into `target`.

    Raises
    ------
    CourseError
        The image has no such templates; there is no engine of TensorRT-LLM; a template that does not parse when filled.
    """
    config = repository.read_config(ours / ENGINE / repository.CONFIG)
    engine = Path(repository.get_parameter(config, "gpt_model_path")) / in_container.FOLDER
    if not engine.is_dir():
        raise CourseError(
            f"There is no TensorRT-LLM engine at {engine}. Build one: with INFLIGHT_IMAGE={image.name} set, "
            "`inflight build` does."
        )
    _copy_templates(runtime, image, target)
    for model, values in _values(config, ours, engine).items():
        file = target / model / repository.CONFIG
        repository.write_config(repository.fill(file.read_text(), values, f"{model}/{repository.CONFIG}"), file)
    return target


def _values(config: ModelConfig, ours: Path, engine: Path) -> dict[str, dict[str, str]]:
    """What goes into the templates: for each model, variable -> value."""
    preprocessing = repository.read_config(ours / "preprocessing" / repository.CONFIG)
    tokenizer = repository.get_parameter(preprocessing, "tokenizer_dir")
    given = {name: value.string_value for name, value in config.parameters.items()}
    more = {name: value for name, value in given.items() if value and name not in ASKED_FOR}
    values = template_values(
        slots=config.max_batch_size or 1,
        batching=given["gpt_model_type"],
        policy=given["batch_scheduler_policy"],
        decoupled=str(config.model_transaction_policy.decoupled).lower(),
        queue_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
        **more,
    )
    places = {"engine_dir": str(engine), "tokenizer_dir": tokenizer}
    return {model: {name: places.get(name, value) for name, value in pairs.items()} for model, pairs in values.items()}


def _copy_templates(runtime: Runtime, image: Image, target: Path) -> None:
    """The models' folders out of the image, through a pipe."""
    source = f"{CONTAINER.app}/all_models/inflight_batcher_llm"
    command = runtime.command(image, f"{target.parent.name}-templates", ["tar", "-C", source, "-c", *MODELS])
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)
    start = done.stdout.find(MODELS[0].encode())  # greetings of the image may come before
    try:
        with tarfile.open(fileobj=io.BytesIO(done.stdout[max(0, start) :])) as archive:
            archive.extractall(target, filter="data")
    except tarfile.TarError:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it has no archive"]
        raise CourseError(f"{image.name} has no templates at {source}: {reason[0]}") from None


def with_settings(theirs: ModelConfig, ours: ModelConfig) -> ModelConfig:
    """A config of another place with our settings: parameters but the places, and whether it is decoupled."""
    config = ModelConfig()
    config.CopyFrom(theirs)
    config.model_transaction_policy.CopyFrom(ours.model_transaction_policy)
    for name, value in ours.parameters.items():
        if not name.endswith(PLACES):
            config.parameters[name].CopyFrom(value)
    return config
