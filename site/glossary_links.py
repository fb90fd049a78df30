"""A Sphinx extension: where a page first says a word of the glossary, it leads there.

A word of several words, or with signs or capitals inside, means one thing everywhere. A plain one, such as "slot" or
"sequence", is linked from the lesson on under which the glossary has it; before that it may be an ordinary word.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

GLOSSARY = "notebooks/glossary"
# Where a word is no prose, or leads somewhere already.
NOT_WITHIN = (
    nodes.reference,
    nodes.title,
    nodes.literal_block,
    nodes.raw,
    nodes.thead,
    nodes.Invisible,
    nodes.caption,
)


@dataclass(frozen=True)
class Term:
    """A heading of the glossary: its words, its anchor, the number of its lesson, and its sentence."""

    words: tuple[str, ...]
    anchor: str
    lesson: int
    meaning: str


def anchor(heading: str) -> str:
    """The anchor of a heading, as Jupyter makes it."""
    return heading.replace(" ", "-")


def read(text: str) -> list[Term]:
    """The terms of a glossary: `## NN · Lesson`, `### Term`, and a sentence that may end with "Also: a, b."."""
    terms, lesson = [], 0
    for part in re.split(r"^(?=##)", text, flags=re.M):
        head, _, body = part.partition("\n")
        if number := re.match(r"## (\d+)", head):
            lesson = int(number[1])
        if head.startswith("### "):
            name, meaning = head.removeprefix("### ").strip("`"), " ".join(body.split())
            meaning, _, others = meaning.partition(" Also: ")
            words = (name, *(word for word in others.rstrip(".").split(", ") if word))
            terms.append(Term(words, nodes.make_id(name), lesson, meaning))
    return terms


class GlossaryLinks(SphinxPostTransform):
    """Links the first place of each term on a page, the longest term first where two begin alike."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_kwargs) -> None:
        docname = self.env.docname
        if docname == GLOSSARY or GLOSSARY not in self.env.found_docs:
            return
        number = re.search(r"(?:^|/)(\d\d)_", docname)
        lesson = int(number[1]) if number else 99
        glossary = read(Path(self.env.doc2path(GLOSSARY)).read_text(encoding="utf-8"))
        by_word = {
            word.lower(): (word, term)
            for term in glossary
            for word in term.words
            if term.lesson <= lesson or not re.fullmatch("[A-Z]?[a-z]+", word)
        }
        pattern = _pattern([word for word, _ in by_word.values()])
        home, done = self.app.builder.get_relative_uri(docname, GLOSSARY), self._linked_already()
        for text in list(self.document.findall(nodes.Text)):
            if not _is_prose(text):
                continue
            parts, end = [], 0
            for match in pattern.finditer(text.astext()):
                term = by_word[match[1].lower()][1]
                if term.anchor in done:
                    continue
                done.add(term.anchor)
                parts += [nodes.Text(text[end : match.start()]), _reference(match[0], term, home)]
                end = match.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[end:])])

    def _linked_already(self) -> set[str]:
        """Anchors of the glossary to which the page's author has linked."""
        uris = (link.get("refuri", "") for link in self.document.findall(nodes.reference))
        return {uri.partition("#")[2] for uri in uris if "glossary" in uri}


def _pattern(words: list[str]) -> re.Pattern:
    """Finds any of `words`, in capitals as they are or at the beginning of a sentence, and its plural."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, longest_first))})(?:s|es)?(?![\w/-])", re.I)


def _is_prose(text: nodes.Text) -> bool:
    place = text.parent
    if isinstance(place, nodes.literal) and len(place.children) == 1 and not re.fullmatch(r"[\w.]+", text.astext()):
        return False  # code in a sentence; a name alone may be a term
    while place is not None:
        if isinstance(place, NOT_WITHIN) or "cell_output" in place.get("classes", ()):
            return False
        place = place.parent
    return True


def _reference(words: str, term: Term, home: str) -> nodes.reference:
    link = nodes.reference("", words, internal=True, refuri=f"{home}#{term.anchor}", classes=["term"])
    link["reftitle"] = term.meaning
    return link


def setup(app: Sphinx) -> dict:
    app.add_post_transform(GlossaryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
