"""Make mini_cnn_eval.json: small news articles and their summaries, by the course's own model.

    python -m tools.mini_dataset

Nothing is fetched but the model. This script writes the first sentence of each paragraph, which keeps a small model
on its subject; the model goes on, sentences that read badly are left out, and more are drawn with other seeds. How
many words an article and a summary get is drawn from a shape like CNN/DailyMail's. Seeds are fixed, and the engine is
built as W4A16, whose answers do not depend on what else is in the batch: one machine makes the same file every time.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from inflight import checkpoint, engine
from inflight.bench.workload import MINI_CNN_EVAL, Record, write_dataset
from inflight.checkpoint import tokenizer
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BuildConfig, Request, SamplingConfig
from inflight.engine.executor import Executor

NUM_RECORDS = 100
INSTRUCTION = "Summarize the following news article:"
# Means as published (See et al. 2017, arXiv:1704.04368, section 4: 781 and 56), the article's at a quarter.
ARTICLE_WORDS, SUMMARY_WORDS = 781 / 4, 56
# CNN/DailyMail has few very long texts and many shorter ones, as a log-normal distribution has: standard deviation of
# the logarithm, and what lies outside the limits is drawn again.
SPREAD, ARTICLE_LIMITS, SUMMARY_LIMITS = 0.5, (60, 450), (20, 130)
PARAGRAPH_WORDS = 26  # about what comes of one paragraph
MAX_TOKENS = 64  # of one paragraph
CLOSE_ENOUGH = 0.85  # of the words a text is to have: whole sentences rarely come to all of them
LONGEST_WORD = 18  # letters; what is longer is no word
MIN_DISTINCT = 0.97  # of the 4-grams of a text: less is a model that repeats itself

TOWNS = (
    "Elmford",
    "Harrow Bay",
    "Larkton",
    "Westmere",
    "Dunhollow",
    "Briar Lake",
    "Oxley Green",
    "Millbrook",
    "Fernhill",
    "Ashdown Cross",
    "Pinewick",
    "Marlow Bridge",
    "Copperfield",
    "Saltmarsh",
    "Thornbury",
    "Hazelwood",
    "Greystone",
    "Willow Bend",
    "Kingsmead",
    "Redwater",
)
TOPICS = (
    "the new footbridge over the river",
    "the community garden",
    "the junior chess club",
    "the bakery on the corner",
    "the map room of the library",
    "the old clock tower",
    "the little steam railway",
    "the beekeeping course",
    "the weather station on the hill",
    "the weekly farmers' market",
    "the lighthouse museum",
    "the town orchestra",
    "the new bicycle path",
    "the apple orchard",
    "the amateur astronomy club",
    "the ferry across the lake",
    "the wooden windmill",
    "the school's vegetable garden",
    "the knitting circle",
    "the kite festival",
    "the repair workshop",
    "the model railway exhibition",
    "the butterfly meadow",
    "the evening choir",
    "the restored carousel",
    "the rowing club",
    "the mobile library",
    "the pottery studio",
    "the flower show",
    "the bird watching tower",
    "the open-air cinema",
    "the tree planting day",
    "the toy museum",
    "the skating rink",
    "the stone arch bridge",
    "the rose garden",
    "the walking trail along the coast",
    "the cheese fair",
    "the puppet theater",
    "the duck pond",
    "the book exchange at the station",
    "the sailing school",
    "the photography exhibition",
    "the tram line to the beach",
    "the swimming pool",
    "the soup kitchen garden",
    "the lantern parade",
    "the village band",
    "the botanical greenhouse",
    "the pumpkin contest",
)
LEADS = (
    "Residents of {town} gathered on Saturday to celebrate {topic}.",
    "Visitors came from all over the county on Sunday to see {topic} in {town}.",
    "The people of {town} are proud of {topic}, and this week they showed it.",
    "There was good news this week for everyone in {town} who cares about {topic}.",
    "In {town}, {topic} has become the talk of the town.",
    "After months of preparation, {topic} in {town} drew a large crowd on Friday.",
)
OPENINGS = (
    "The idea came up many years ago.",
    "Volunteers have done most of the work.",
    "Visitors found plenty to see.",
    "Families arrived early in the morning, and many stayed all day.",
    "The weather was kind as well.",
    "The town council has promised its support.",
    "Local shops have noticed the difference.",
    "Children were especially curious.",
    "Not everything went smoothly at first.",
    "Neighbors have helped in many small ways.",
    "The costs were shared by the town and its residents.",
    "Older residents remember how it used to be.",
    "The local school has joined in as well.",
    "A group of students prepared a small exhibition.",
    "Music was part of the day, too.",
    "Those who could not come can still take part.",
    "The organizers had worked on every detail.",
    "Much of the material came from nearby.",
    "More is planned for next year.",
    "The next event will take place in spring.",
)
CALENDAR = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
    "September October November December Christmas Easter"
)
# First and second person, which news do without; persons of whom nothing was said before; words about the text itself;
# and subjects that an example should not touch.
UNWANTED = re.compile(
    r"\b(I|me|my|we|us|our|you|your|he|she|his|him|her|article|paragraph|essay|anecdote|narrative|readers?|text|passage|"
    r"kill\w*|dead|death\w*|die[ds]?|dying|fallen|murder\w*|crim\w+|police|arrest\w*|shoplift\w*|guns?|wars?|weapon\w*|"
    r"attack\w*|violen\w+|blood\w*|drugs?|alcohol\w*|sex\w*|rape\w*|abus\w+|racis\w*|slave\w*|religio\w+|church\w*|god|"
    r"politic\w+|suicid\w*|terror\w*|victim\w*|pandemic|disease\w*|cancer\w*|medical|hate\w*|naked|hell|fires?|destroy\w*|"
    r"explo\w+|demolish\w*)\b",
    re.IGNORECASE,
)
PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-"})


@dataclass
class Draft:
    """One record on its way: its subject, how long it is to become, and what there is of it."""

    topic: str
    town: str
    article_words: int
    summary_words: int
    lead: str
    openings: list[str]  # of the paragraphs after the lead, not used yet
    seed: int
    article: str = ""
    summary: str = ""

    @property
    def lacks_paragraphs(self) -> bool:
        return _num_words(self.article) < self.article_words * CLOSE_ENOUGH

    @property
    def lacks_summary(self) -> bool:
        return _num_words(self.summary) < self.summary_words * CLOSE_ENOUGH

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed


class Writer:
    """The course's model as an author: it goes on from a beginning, drawn with a seed, to the end of the paragraph."""

    def __init__(self, executor: Executor, text: tokenizer.ChatTokenizer):
        self._executor, self._text = executor, text
        self._paragraph_ends = [text.encode("\n"), text.encode("\n\n")]

    def request(self, question: str, begun: str, max_tokens: int, seed: int) -> Request:
        sampling = SamplingConfig(temperature=0.7, top_p=0.9, repetition_penalty=1.05, random_seed=seed)
        return Request(
            self._text.encode(self._text.chat(question) + begun),
            max_tokens,
            self._text.end_id,
            stop_words=self._paragraph_ends,
            sampling=sampling,
        )

    def write(self, requests: list[Request]) -> list[str]:
        return [self._text.decode(response.token_ids) for response in self._executor.generate_all(requests)]


def main() -> None:
    """Write the shipped dataset anew; about five minutes on two cores that do nothing else."""
    folder = engine.cached(checkpoint.fetch(), BuildConfig(quant_algo="W4A16", max_batch_size=32))
    drafts = plan(NUM_RECORDS, seed=0)
    with Executor.load(folder) as executor:
        writer = Writer(executor, load_tokenizer(folder))
        while unfinished := [draft for draft in drafts if draft.lacks_paragraphs and draft.openings]:
            print(f"articles to finish: {len(unfinished)}")
            _add_paragraphs(unfinished, writer)
        while unfinished := [draft for draft in drafts if draft.lacks_summary]:
            print(f"summaries to finish: {len(unfinished)}")
            _add_to_summaries(unfinished, writer)
    write_dataset([Record(draft.article, INSTRUCTION, draft.summary) for draft in drafts], MINI_CNN_EVAL)
    print(MINI_CNN_EVAL)


def plan(number: int, seed: int) -> list[Draft]:
    """Subjects and lengths of `number` records."""
    choose = random.Random(seed)
    drafts = []
    for index in range(number):
        topic, town = TOPICS[index % len(TOPICS)], choose.choice(TOWNS)
        drafts.append(
            Draft(
                topic,
                town,
                _length(choose, ARTICLE_WORDS, ARTICLE_LIMITS),
                _length(choose, SUMMARY_WORDS, SUMMARY_LIMITS),
                choose.choice(LEADS).format(town=town, topic=topic),
                choose.sample(OPENINGS, len(OPENINGS)),
                seed=1000 * index,
            )
        )
    return drafts


def _length(choose: random.Random, mean: float, limits: tuple[int, int]) -> int:
    """Words, log-normal: of mean `mean`, for the mean is exp(mu + sigma² / 2)."""
    while True:
        words = round(mean * choose.lognormvariate(-(SPREAD**2) / 2, SPREAD))
        if limits[0] <= words <= limits[1]:
            return words


def _add_paragraphs(drafts: list[Draft], writer: Writer) -> None:
    """Write for each draft as many paragraphs as it seems to lack, each from its own first sentence."""
    paragraphs = []  # (draft, first sentence, request)
    for draft in drafts:
        question = (
            f"Write a local newspaper article about {draft.topic} in the town of {draft.town}. Use plain paragraphs."
        )
        wanted = math.ceil((draft.article_words - _num_words(draft.article)) / PARAGRAPH_WORDS)
        if not draft.article:
            paragraphs.append((draft, draft.lead, writer.request(question, draft.lead, MAX_TOKENS, draft.next_seed())))
            wanted -= 1
        first, draft.openings = draft.openings[:wanted], draft.openings[wanted:]
        for opening in first:
            # The lead and this sentence alone: all that was written before would lead a small model astray.
            request = writer.request(question, f"{draft.lead} {opening}", MAX_TOKENS, draft.next_seed())
            paragraphs.append((draft, opening, request))
    texts = writer.write([request for _, _, request in paragraphs])
    for (draft, opening, _), text in zip(paragraphs, texts):
        begun = f"{draft.article} {opening}".strip()
        longer = with_good_sentences(begun, text, draft, draft.article_words)
        if draft.lacks_paragraphs and (longer != begun or not draft.article):
            draft.article = longer


def _add_to_summaries(drafts: list[Draft], writer: Writer) -> None:
    """Go on with each summary; it begins with the subject, so that a small model keeps to it."""
    begun = [draft.summary or f"{draft.topic[0].upper()}{draft.topic[1:]} in {draft.town}" for draft in drafts]
    requests = []
    for draft, beginning in zip(drafts, begun):
        missing = draft.summary_words - _num_words(draft.summary)
        question = Record(draft.article, INSTRUCTION, "").prompt
        requests.append(writer.request(question, beginning, MAX_TOKENS + 2 * missing, draft.next_seed()))
    for draft, beginning, text in zip(drafts, begun, writer.write(requests)):
        if draft.summary:
            draft.summary = with_good_sentences(draft.summary, text, draft, draft.summary_words)
        else:
            draft.summary = with_good_sentences("", beginning + text, draft, draft.summary_words)


def with_good_sentences(begun: str, text: str, draft: Draft, max_words: int) -> str:
    """`begun` and the whole sentences of the first paragraph of `text` that read well, until there are enough words."""
    paragraph = text.strip().split("\n")[0].translate(PLAIN)
    for sentence in re.findall(r"[^.!?]+[.!?]+", paragraph):
        longer = f"{begun} {sentence.strip()}".strip()
        if (
            _num_words(begun) < max_words
            and _reads_well(sentence.strip(), draft)
            and (distinct_4_grams(longer) >= MIN_DISTINCT)
        ):
            begun = longer
    return begun


def _reads_well(sentence: str, draft: Draft) -> bool:
    """A plain sentence about the subject: no names or numbers that were made up, and nothing unwanted."""
    if not re.fullmatch(r"[A-Z][A-Za-z ,;:'-]+\.", sentence) or UNWANTED.search(sentence):
        return False
    known = {*re.findall(r"[\w-]+", draft.town), *CALENDAR.split()}
    made_up = [name for name in re.findall(r"(?<= )[A-Z][\w-]*", sentence) if name not in known]
    return not made_up and 5 <= _num_words(sentence) <= 40 and max(map(len, sentence.split())) <= LONGEST_WORD


def distinct_4_grams(text: str) -> float:
    """Different sequences of four words over all of them: 1 when nothing is said twice."""
    words = re.findall(r"[\w'-]+", text.lower())
    grams = list(zip(words, words[1:], words[2:], words[3:]))
    return len(set(grams)) / max(1, len(grams))


def _num_words(text: str) -> int:
    return len(text.split())


if __name__ == "__main__":
    main()
