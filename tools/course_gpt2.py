"""Make assets/checkpoints/course-gpt2: a small GPT-2, from the text it learns to its model card.

    python -m tools.course_gpt2 text     # the course's own model writes it: some twenty minutes of CPU time
    python -m tools.course_gpt2 train    # tokenizer, weights, model card: some thirty

Nothing is fetched but the model. It answers a few thousand questions about everyday things and computers; the beginning
of each answer ("Baking bread is like") is given to it. The text stays in the course's cache folder, the rest goes to
the repository. Everything is drawn with fixed seeds; still, the engine rounds by what else is in the batch, and another
number of cores adds in another order, so what is made again is alike and not the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import checkpoint, engine, files, machine
from inflight.checkpoint import tokenizer
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BuildConfig, Request, SamplingConfig
from inflight.engine.executor import Executor
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.models.gpt2_checkpoint import CHECKPOINTS, COURSE
from tools.mini_dataset import PLAIN, distinct_4_grams

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import GPT2LMHeadModel

FOLDER = CHECKPOINTS / COURSE
SEED = 0
# Of the text.
NUM_PROMPTS = 6000
CHUNK = 1000  # prompts between two writes to the file
MIN_TOKENS, MAX_TOKENS = 24, 160  # of one answer
MIN_WORDS = 12  # of a text that is good enough
MIN_DISTINCT = 0.95  # of its 4-grams: less is a model that repeats itself
HELD_OUT = 0.028  # of the beginnings, with all texts that begin so
# Of the model and its training.
END = "<|endoftext|>"
VOCABULARY, POSITIONS = 4096, 1024
SHAPE = {"n_layer": 8, "n_embd": 256, "n_head": 4}
TOKENS_PER_STEP = 2048
ROW, LONG_ROW = 256, 1024  # tokens
LEARNING_RATE, WEIGHT_DECAY, MAX_GRADIENT = 3e-3, 0.1, 1.0
STEPS_PER_POINT = 100  # of the training curve
HELD_OUT_ROWS = 32  # texts computed at once
PADDING = -100


@dataclass(frozen=True)
class Stage:
    """A part of the training, with optimizers of its own.

    The learning rate is `LEARNING_RATE` times a factor: a straight line up during `warm_up_steps`, then half a cosine
    from `peak` that would reach 0 after `cosine_steps`.
    """

    steps: int
    warm_up_steps: int
    cosine_steps: int
    peak: float
    has_long_rows: bool  # at every other step

    def learning_rate_factor(self, step: int) -> float:
        if step < self.warm_up_steps:
            return self.peak * (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / (self.cosine_steps - self.warm_up_steps)
        return self.peak * (0.5 + 0.5 * math.cos(math.pi * done))


STAGES = (Stage(1300, 100, 1650, 1.0, False), Stage(300, 10, 300, 0.3, True))

# Text -----------------------------------------------------------------------------------------------------------------

LANGUAGES = (
    "C",
    "C++",
    "Python",
    "Java",
    "JavaScript",
    "Rust",
    "Go",
    "Ruby",
    "Haskell",
    "Lisp",
    "Fortran",
    "assembly language",
    "Swift",
    "Kotlin",
    "Perl",
    "SQL",
)
COMPUTING = (
    "a computer",
    "a compiler",
    "an interpreter",
    "a database",
    "a web server",
    "a web browser",
    "an operating system",
    "a computer network",
    "the internet",
    "a router",
    "a firewall",
    "a password",
    "an algorithm",
    "a sorting algorithm",
    "a search engine",
    "a variable in a program",
    "a loop in a program",
    "a function in a program",
    "a pointer",
    "an array",
    "a linked list",
    "a hash table",
    "a stack",
    "a queue",
    "a binary tree",
    "a graph",
    "a class in a program",
    "recursion",
    "debugging a program",
    "testing software",
    "writing documentation",
    "reading other people's code",
    "version control",
    "open source software",
    "a bug in a program",
    "a GPU",
    "a CPU",
    "computer memory",
    "a hard disk",
    "a cache",
    "virtual memory",
    "a process",
    "a thread",
    "a lock",
    "a deadlock",
    "parallel computing",
    "cloud computing",
    "a data center",
    "a load balancer",
    "a message queue",
    "batching requests",
    "serving many users at once",
    "in-flight batching",
    "streaming tokens",
    "latency",
    "throughput",
    "a benchmark",
    "a language model",
    "a neural network",
    "machine learning",
    "training a model",
    "a token",
    "an embedding",
    "attention in a language model",
    "a KV cache",
    "quantization",
    "a prompt",
    "a chatbot",
    "speech recognition",
    "image recognition",
    "a robot",
    "a spreadsheet",
    "a text editor",
    "a keyboard",
    "a printer",
    "a mobile phone",
    "an app",
    "a website",
    "an email",
    "encryption",
    "a backup",
    "a container",
    "a virtual machine",
    "a server",
    "a client",
    "a request to a server",
    "a scheduler",
    "a timeout",
    "a log file",
    "a script",
    "a library of functions",
    "an interface",
    "an error message",
    "a file system",
    "a folder",
    "compression",
    "a computer virus",
    "a video game",
    "a graphics card",
    "a programmer",
)
EVERYDAY = (
    "baking bread",
    "cooking soup",
    "a kitchen",
    "a restaurant",
    "a good recipe",
    "a cup of tea",
    "a cup of coffee",
    "a chocolate cake",
    "an apple",
    "a banana",
    "cheese",
    "salt",
    "sugar",
    "rice",
    "pizza",
    "pasta",
    "a salad",
    "honey",
    "breakfast",
    "a picnic",
    "a farmers' market",
    "a garden",
    "a rose",
    "a sunflower",
    "an oak tree",
    "a forest",
    "a river",
    "a lake",
    "the ocean",
    "a mountain",
    "a desert",
    "an island",
    "a beach",
    "a volcano",
    "a cave",
    "a valley",
    "a glacier",
    "rain",
    "snow",
    "wind",
    "a cloud",
    "a thunderstorm",
    "a rainbow",
    "fog",
    "spring",
    "summer",
    "autumn",
    "winter",
    "the sun",
    "the moon",
    "a star",
    "a planet",
    "the solar system",
    "gravity",
    "light",
    "sound",
    "electricity",
    "a magnet",
    "water",
    "ice",
    "fire",
    "air",
    "the human brain",
    "the heart",
    "sleep",
    "a dream",
    "memory",
    "laughter",
    "friendship",
    "a family",
    "a neighbor",
    "a teacher",
    "a student",
    "a school",
    "a library",
    "a book",
    "a poem",
    "a dictionary",
    "a newspaper",
    "a letter",
    "a story",
    "a song",
    "a piano",
    "a guitar",
    "a violin",
    "a drum",
    "an orchestra",
    "jazz",
    "dancing",
    "singing in a choir",
    "painting a picture",
    "drawing",
    "taking photographs",
    "a museum",
    "a theater",
    "a movie",
    "playing chess",
    "playing football",
    "playing tennis",
    "swimming",
    "running a marathon",
    "riding a bicycle",
    "hiking",
    "sailing",
    "fishing",
    "skiing",
    "yoga",
    "a team",
    "a coach",
    "a puzzle",
    "a board game",
    "a kite",
    "a toy",
    "a doll",
    "a dog",
    "a cat",
    "a horse",
    "a cow",
    "a sheep",
    "an elephant",
    "a lion",
    "a bear",
    "a fox",
    "a rabbit",
    "a mouse",
    "a bird",
    "an owl",
    "a penguin",
    "a fish",
    "a whale",
    "a dolphin",
    "a frog",
    "a turtle",
    "a snake",
    "a spider",
    "an ant",
    "a bee",
    "a butterfly",
    "a city",
    "a village",
    "a street",
    "a bridge",
    "a house",
    "a window",
    "a door",
    "a roof",
    "a chair",
    "a table",
    "a lamp",
    "a clock",
    "a mirror",
    "a key",
    "an umbrella",
    "a pair of shoes",
    "a coat",
    "a map",
    "a compass",
    "a train",
    "a bus",
    "a car",
    "a ship",
    "an airplane",
    "a bicycle",
    "an elevator",
    "a traffic light",
    "an airport",
    "a train station",
    "a post office",
    "a hospital",
    "a doctor",
    "a bank",
    "money",
    "a shop",
    "a factory",
    "a hammer",
    "a nail",
    "a machine",
    "a wheel",
    "an engine",
    "a windmill",
    "a lighthouse",
    "a telescope",
    "a microscope",
    "mathematics",
    "geometry",
    "statistics",
    "physics",
    "chemistry",
    "biology",
    "history",
    "geography",
    "astronomy",
    "learning a language",
    "learning to swim",
    "reading a book",
    "writing a letter",
    "growing vegetables",
    "moving to a new city",
    "time",
    "luck",
    "patience",
    "courage",
    "kindness",
    "honesty",
    "a promise",
    "a good question",
    "a mistake",
    "a plan",
    "hard work",
    "a holiday",
    "a birthday party",
    "a long journey",
    "a surprise",
    "a secret",
    "silence",
    "a good night's sleep",
)
# How a text is asked for, and how it begins; {x} is a topic, {X} the same at the beginning of a sentence.
PATTERNS = (
    (
        "Explain {x} by comparing it with something from everyday life. Write one paragraph of short, plain sentences.",
        "{X} is like",
    ),
    (
        "Compare {x} with something that everyone knows, and say why they are alike. Use short, plain sentences.",
        "{X} is like",
    ),
    ("Explain to a child what {x} is like. Use a few short, plain sentences.", "{X} is a bit like"),
    ("What is {x}? Explain it to a beginner in one paragraph of short, plain sentences.", "{X} is"),
    ("Describe {x} in one paragraph of short, plain sentences.", "{X} is"),
    ("Why do people care about {x}? Answer in one paragraph of plain sentences.", "{X} is important because"),
    ("What is the best thing about {x}? Answer in a few plain sentences.", "The best thing about {x} is"),
    ("What should a beginner know about {x}? Answer in a few plain sentences.", "When you think about {x},"),
    ("Tell me how you learned about {x}. Use a few plain sentences.", "When I first heard about {x}, I"),
)
HEROES = (
    "a little girl",
    "an old man",
    "a young programmer",
    "a curious cat",
    "a small robot",
    "a brave mouse",
    "a lonely giant",
    "a clever fox",
    "a king",
    "a queen",
    "a fisherman",
    "a baker",
    "a shy boy",
    "a wise owl",
    "a farmer",
    "a friendly dragon",
    "a sailor",
    "a tired teacher",
    "a busy bee",
    "a painter",
    "a tiny computer",
    "a slow turtle",
    "a gardener",
    "a musician",
    "two brothers",
    "three friends",
    "a grandmother",
    "a clockmaker",
    "a traveler",
    "a bird",
    "a bear",
    "a young scientist",
)
PLACES = (
    "in a small village",
    "near the sea",
    "in a big city",
    "in a deep forest",
    "on a high mountain",
    "in a quiet library",
    "by a river",
    "on a small island",
    "in a busy market",
    "in a house with a blue door",
)
STORY = (
    "Write a short, simple story about {hero} {place}, in one paragraph with a happy end.",
    "Once upon a time, there {was} {hero} {place}",
)
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "England": "London",
    "Scotland": "Edinburgh",
    "Belgium": "Brussels",
    "the Netherlands": "Amsterdam",
    "Hungary": "Budapest",
    "Russia": "Moscow",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Morocco": "Rabat",
    "India": "New Delhi",
    "China": "Beijing",
    "Japan": "Tokyo",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Indonesia": "Jakarta",
    "Australia": "Canberra",
    "New Zealand": "Wellington",
    "Canada": "Ottawa",
    "the United States": "Washington",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Brazil": "Brasilia",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima",
    "Colombia": "Bogota",
}
CAPITAL = (
    "Describe the capital of {country} in one paragraph of short, plain sentences.",
    "The capital of {country} is {city}",
)
GOALS = (
    "serve many users at once",
    "answer many requests at the same time",
    "make a program faster",
    "find a bug in a program",
    "train a language model",
    "build a website",
    "learn to program",
    "write good code",
    "keep a password safe",
    "store a lot of data",
    "share a computer with others",
    "use less memory",
    "test a program",
    "send a message",
    "bake a good cake",
    "cook a simple meal",
    "grow tomatoes",
    "learn a new language",
    "play the piano well",
    "stay healthy",
    "sleep well",
    "save money",
    "make new friends",
    "write a good story",
    "prepare for an exam",
    "plan a long journey",
    "win a game of chess",
    "run a restaurant",
    "keep a kitchen clean",
    "take a good photograph",
    "train a dog",
    "fix a bicycle",
    "read a map",
    "teach a class",
    "solve a hard problem",
    "build a house",
    "cross a river",
    "cool a room",
    "save energy",
    "keep a secret",
)
GOAL = ("How does one {goal}? Answer in one paragraph of short, plain sentences.", "To {goal},")


@dataclass(frozen=True)
class Prompt:
    """What the author is asked for, the words that its text begins with, and the seed of the draw."""

    question: str
    begun: str
    seed: int


def prompts(number: int = NUM_PROMPTS) -> list[Prompt]:
    """The first `number` of an endless, seeded shuffle; whoever asks for more gets the same ones first."""
    choose, pairs = random.Random(SEED), _questions()
    found = []
    while len(found) < number:
        found += [Prompt(*pair, seed=len(found) + index) for index, pair in enumerate(choose.sample(pairs, len(pairs)))]
    return found[:number]


def _questions() -> list[tuple[str, str]]:
    """Every question once, with the beginning of its answer."""
    languages = [f"programming in {language}" for language in LANGUAGES]
    pairs = [
        (question.format(x=topic), begun.format(x=topic, X=topic[0].upper() + topic[1:]))
        for topic in (*languages, *COMPUTING, *EVERYDAY)
        for question, begun in PATTERNS
    ]
    for hero in HEROES:
        was = "were" if hero.startswith(("two", "three")) else "was"
        pairs += [tuple(part.format(hero=hero, place=place, was=was) for part in STORY) for place in PLACES]
    pairs += 3 * [
        tuple(part.format(country=country, city=city) for part in CAPITAL) for country, city in CAPITALS.items()
    ]
    pairs += 3 * [tuple(part.format(goal=goal) for part in GOAL) for goal in GOALS]
    return pairs


def text_file() -> Path:
    """Where the text lies in the user's cache folder: one line a prompt."""
    return checkpoint.cache_dir() / "course-gpt2" / "text.txt"


def write_text() -> None:
    """Have the course's model answer every prompt; goes on where an interrupted run stopped."""
    path = text_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    folder = engine.cached(checkpoint.fetch(), BuildConfig(max_batch_size=64))
    author, wanted = load_tokenizer(folder), prompts()
    with Executor.load(folder) as executor, open(path, "a", encoding="utf-8") as file:
        for start in range(done, len(wanted), CHUNK):
            part = wanted[start : start + CHUNK]
            responses = executor.generate_all([_request(author, prompt) for prompt in part])
            answers = [prompt.begun + author.decode(response.token_ids) for prompt, response in zip(part, responses)]
            file.writelines(" ".join(answer.split()) + "\n" for answer in answers)
            file.flush()
            print(f"{start + len(part)} of {len(wanted)} prompts answered", flush=True)


def _request(author: tokenizer.ChatTokenizer, prompt: Prompt) -> Request:
    sampling = SamplingConfig(
        temperature=0.6, top_k=50, top_p=0.9, repetition_penalty=1.05, min_length=MIN_TOKENS, random_seed=prompt.seed
    )
    return Request(
        author.encode(author.chat(prompt.question) + prompt.begun),
        MAX_TOKENS,
        author.end_id,
        stop_words=[author.encode("\n"), author.encode("\n\n")],
        sampling=sampling,
    )


# What is good of it ---------------------------------------------------------------------------------------------------

# Subjects that an example should not touch.
UNSUITABLE = re.compile(
    r"\b(kill\w*|dead|death\w*|die[ds]?|dying|murder\w*|crim\w+|guns?|wars?|weapon\w*|violen\w+|blood\w*|drugs?|"
    r"alcohol\w*|beer|wine|sex\w*|rape\w*|abus\w+|rac(?:ial|is)\w*|slave\w*|religio\w+|church\w*|god|politic\w+|"
    r"suicid\w*|terror\w*|victim\w*|cancer\w*|hate\w*|naked|hell)\b",
    re.IGNORECASE,
)


def cleaned(line: str) -> str | None:
    """The whole sentences of an answer in plain ASCII, or None if they are few, repeat themselves or had better go."""
    line = line.translate(PLAIN)
    ends = [match.end() for match in re.finditer(r"[.!?]\"?(?= |$)", line)]
    text = line[: ends[-1]] if ends else ""
    is_prose = re.fullmatch(r"[A-Za-z0-9 ,;:.!?'\"()/&%$+-]+", text) and not UNSUITABLE.search(text)
    if not is_prose or len(text.split()) < MIN_WORDS or distinct_4_grams(text) < MIN_DISTINCT:
        return None
    return text


def split(lines: list[str]) -> tuple[list[str], list[str]]:
    """Good texts to train on, and held-out ones, none of which begins with the same words as a text to train on."""
    texts = [(prompt.begun, text) for prompt, line in zip(prompts(len(lines)), lines) if (text := cleaned(line))]
    beginnings = sorted({begun for begun, _ in texts})
    held_out = set(random.Random(SEED).sample(beginnings, round(HELD_OUT * len(beginnings))))
    return (
        [text for begun, text in texts if begun not in held_out],
        [text for begun, text in texts if begun in held_out],
    )


# Tokenizer and model --------------------------------------------------------------------------------------------------


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """GPT-2's kind of byte-pair tokenizer, with a vocabulary of `VOCABULARY` tokens; token 0 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = Tokenizer(models.BPE())
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text.train_from_iterator(texts, trainer)
    return text


def encoded(text: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, with the token that ends it."""
    return [[*encoding.ids, text.token_to_id(END)] for encoding in text.encode_batch(texts)]


def new_model() -> GPT2LMHeadModel:
    """A GPT-2 that has learned nothing yet, in float32."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.1,
        **SHAPE,
    )
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        block.mlp.act = torch.nn.GELU(approximate="tanh")  # what gelu_new computes, in a quarter of its time
    return model


# Training -------------------------------------------------------------------------------------------------------------


def rows(texts: list[list[int]], length: int, choose: random.Random) -> Iterator[list[int]]:
    """Endless rows of `length` + 1 tokens, all texts in a new order each time round.

    A row starts with the first token of a text, as a prompt does; what does not fit of its last text is left out.
    """
    row = []
    while True:
        for ids in choose.sample(texts, len(texts)):
            row += ids
            if len(row) > length:
                yield row[: length + 1]
                row = []


def batches(texts: list[list[int]], stage: Stage) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [rows, length + 1] and positions [rows, length] of every step of a stage.

    Half of the short rows start at a random position, or the last ones would be trained in the long rows alone.
    """
    import torch

    choose = random.Random(SEED)
    sources = {length: rows(texts, length, choose) for length in (ROW, LONG_ROW)}
    for step in range(stage.steps):
        length = LONG_ROW if stage.has_long_rows and step % 2 else ROW
        number = TOKENS_PER_STEP // length
        starts = [choose.randint(0, POSITIONS - length) if index % 2 else 0 for index in range(number)]
        positions = torch.tensor(starts)[:, None] + torch.arange(length)
        yield torch.tensor([next(sources[length]) for _ in range(number)]), positions


def loss(model: GPT2LMHeadModel, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """Mean negative log-likelihood, in nats a token, of every token of `ids` [rows, length] but the first of a row.

    Rows may be filled up with `PADDING` on the right, which does not count.
    """
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=ids[:, :-1].clamp(min=0), position_ids=positions, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=PADDING)


def held_out_loss(model: GPT2LMHeadModel, texts: list[list[int]]) -> float:
    """Mean negative log-likelihood, in nats a token, over all texts; each is a row of its own, from position 0."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    was_training, total = model.training, 0.0
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(texts), HELD_OUT_ROWS):
            part = [torch.tensor(ids) for ids in texts[start : start + HELD_OUT_ROWS]]
            num_predicted = sum(len(ids) - 1 for ids in part)
            total += num_predicted * loss(model, pad_sequence(part, batch_first=True, padding_value=PADDING)).item()
    model.train(was_training)
    return total / sum(len(ids) - 1 for ids in texts)


def fit(model: GPT2LMHeadModel, data: Data) -> list[dict]:
    """Train `model` on the texts, stage after stage; the curve: step, tokens so far, training and held-out loss."""
    import torch

    curve, losses, model = [], [], model.train()
    for stage in STAGES:
        optimizers = _optimizers(model)
        schedules = [torch.optim.lr_scheduler.LambdaLR(each, stage.learning_rate_factor) for each in optimizers]
        for ids, positions in batches(data.ids, stage):
            losses.append(_step(model, ids, positions, optimizers))
            for schedule in schedules:
                schedule.step()
            if len(losses) % STEPS_PER_POINT == 0:
                curve.append(
                    {
                        "step": len(losses),
                        "tokens": len(losses) * TOKENS_PER_STEP,
                        "loss": round(sum(losses[-STEPS_PER_POINT:]) / STEPS_PER_POINT, 4),
                        "held_out_loss": round(held_out_loss(model, data.held_out_ids), 4),
                    }
                )
                print(curve[-1], flush=True)
    return curve


def _step(model: GPT2LMHeadModel, ids: torch.Tensor, positions: torch.Tensor, optimizers: list) -> float:
    """Change the weights once; the loss before."""
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        value = loss(model, ids, positions)
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad()
    return value.item()


def _optimizers(model: GPT2LMHeadModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, norms and biases.

    Muon: K. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; with its steps as large as
    AdamW's (Liu et al. 2025, arXiv:2502.16982, section 2.2), so that one learning rate serves both.
    """
    import torch

    matrices = [parameter for parameter in model.transformer.h.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


# The folder -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Texts to train on and held-out ones, as they are and as token ids."""

    texts: list[str]
    held_out: list[str]
    tokenizer: Tokenizer
    ids: list[list[int]]
    held_out_ids: list[list[int]]


def read_data() -> Data:
    """The good ones of the texts in the cache folder, and a tokenizer trained on those that are not held out."""
    if not text_file().exists():
        raise CourseError(f"There is no text in {text_file()} yet: run `python -m tools.course_gpt2 text` first.")
    texts, held_out = split(text_file().read_text(encoding="utf-8").splitlines())
    text = train_tokenizer(texts)
    return Data(texts, held_out, text, encoded(text, texts), encoded(text, held_out))


def train() -> None:
    """Train tokenizer and model on the text, and write the checkpoint's folder."""
    data, model = read_data(), new_model()
    write_checkpoint(model, data, fit(model, data))


def write_checkpoint(model: GPT2LMHeadModel, data: Data, curve: list[dict]) -> None:
    """Write weights in bfloat16, tokenizer, held-out text, figures and model card."""
    import torch

    model.to(torch.bfloat16)
    final = held_out_loss(model.float(), data.held_out_ids)  # of the weights as they are kept
    figures = {
        "seed": SEED,
        "machine": machine.describe(),
        "text": {
            "prompts": NUM_PROMPTS,
            "texts": len(data.texts),
            "tokens": sum(map(len, data.ids)),
            "held_out_texts": len(data.held_out),
            "held_out_tokens": sum(map(len, data.held_out_ids)),
        },
        "hyperparameters": {
            **SHAPE,
            "vocabulary": VOCABULARY,
            "parameters": model.num_parameters(),
            "tokens_per_step": TOKENS_PER_STEP,
            "row": ROW,
            "long_row": LONG_ROW,
            "learning_rate": LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "stages": [dataclasses.asdict(stage) for stage in STAGES],
        },
        "curve": curve,
        "held_out_loss": round(final, 4),
        "held_out_perplexity": round(math.exp(final), 2),
    }
    _write_folder(model, data, figures)
    print(FOLDER, f"held-out perplexity {figures['held_out_perplexity']}")


def _write_folder(model: GPT2LMHeadModel, data: Data, figures: dict) -> None:
    import torch

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "unk_token": END,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }  # GPT-2 would add token types to its embeddings
    with files.written_aside(FOLDER, "checkpoint") as aside, huggingface.quiet():
        model.to(torch.bfloat16).save_pretrained(aside)
        data.tokenizer.save(str(aside / "tokenizer.json"))
        (aside / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        (aside / "held_out.txt").write_text("".join(f"{line}\n" for line in data.held_out), encoding="utf-8")
        (aside / "training.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(_model_card(figures), encoding="utf-8")


def _model_card(figures: dict) -> str:
    text, made = figures["text"], figures["hyperparameters"]
    first, last = figures["curve"][0], figures["curve"][-1]
    return f"""# course-gpt2

The GPT-2 that ships with the course: small enough to travel with it, and good enough to go on in English sentences
after "Programming in C++ is like". It is there to be served, stopped and timed. What it says is often wrong, and
after a sentence or two it may repeat itself.

| | |
|---|---|
| architecture | GPT-2: {made["n_layer"]} layers, {made["n_embd"]} wide, {made["n_head"]} heads, {POSITIONS} positions |
| parameters | {made["parameters"] / 1e6:.1f} million, bfloat16, embeddings and output tied |
| tokenizer | GPT-2's kind of byte-level BPE, {VOCABULARY} tokens; `{END}` is token 0 |
| text | {text["texts"]} short texts, {text["tokens"]} tokens |
| training | {last["tokens"] / 1e6:.1f} million tokens, each text about {last["tokens"] / text["tokens"]:.0f} times |
| training loss, nats a token | {first["loss"]:.2f} in the first {first["step"]} steps, {last["loss"]:.2f} in the last |
| held-out text | {text["held_out_texts"]} texts, {text["held_out_tokens"]} tokens |
| held-out loss, nats a token | {figures["held_out_loss"]:.2f} |
| held-out perplexity | {figures["held_out_perplexity"]} |

`training.json` holds the whole curve, the seed, all hyperparameters, the machine and the versions.

## Text

SmolLM2-135M-Instruct, the course's own model, wrote it: answers to {text["prompts"]} short questions about everyday
things and computers. Answers that are very short, repeat themselves or touch on what an example should not are left
out. No other text went in.

Held out are all texts that begin with certain words ("A river is like"); `held_out.txt` has them, one a line. Other
texts speak of the same things, so the figure says how well the model knows this kind of text, not English. Each text is
computed by itself, from its second token to the token that ends it.

## Making it again

    python -m tools.course_gpt2 text
    python -m tools.course_gpt2 train

Seeds are fixed. The engine that writes the text rounds by what else is in the batch, and another number of cores adds
in another order: what comes out is alike, not the same.

## Licence

Apache-2.0, as the course. The model that wrote the text is Apache-2.0 too.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the course's GPT-2.")
    parser.add_argument("part", choices=("text", "train"))
    {"text": write_text, "train": train}[parser.parse_args().part]()


if __name__ == "__main__":
    main()
