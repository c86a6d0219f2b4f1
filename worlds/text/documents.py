"""Documents that `Index` searches: 60 bundled towns, or the items and passages of a user's file.

A line of the user's file is one of these JSON objects:

    {"name": "red mug", "price": 9, "material": "clay"}      an item with its attributes
    {"title": "The Nile", "text": "The Nile is ..."}         a passage
    {"question": "Where does the Nile end?", "answer": "the Mediterranean"}

An "answer" may be a list of right answers. A question may have "steps", such as ["search Nile"].
Steps are the tool calls that a demonstration makes before it answers.
"""

from configurator import UserError

import errno
import json
import math
import re
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.text import describe_line_error, printable
from worlds.countdown import evaluate_expression
from worlds.text.base import drop_articles

LAND_SEED = 31  # random seed of the bundled towns
FIRST_SYLLABLES = "Ta Lu Ne Ro Vi Ko Ma Su De Fi".split()
LAST_SYLLABLES = "vor len mar nil ras sol".split()
RIVERS = "Lum Ane Oder Sill Tarn Wey Arno Bure".split()
TRADES = "salt wool iron fish wine glass".split()
MAX_NAME = 80  # characters of a name, a title or the key of an attribute
MAX_VALUE = 150  # characters of an attribute's value, an answer or a step
MAX_QUESTION = 1000  # characters of a question
MAX_NUMBER = 10**9  # a number in a user's file must have an absolute value below this
MAX_FILE = 100_000_000  # bytes of a user's file


class Document(NamedTuple):
    """An item or a passage."""

    name: str
    text: str
    attributes: dict[str, str | int | float]  # {} for a passage


class Question(NamedTuple):
    """A question of a user's file."""

    text: str
    answers: tuple[str, ...]  # each answer is right
    steps: tuple[str, ...] = ()  # tool calls that a demonstration makes before it answers


def bundled_towns() -> list[Document]:
    """Return 60 invented towns with five facts each, the same on every machine."""
    rng = np.random.default_rng(LAND_SEED)
    towns = []
    for first, last in product(FIRST_SYLLABLES, LAST_SYLLABLES):
        age, size, tax = rng.integers(11, 100, 3).tolist()
        attributes = {
            "age": age,
            "size": size,
            "tax": tax,
            "river": str(rng.choice(RIVERS)),
            "trade": str(rng.choice(TRADES)),
        }
        towns.append(item(f"{first}{last}", attributes))
    return towns


def item(name: str, attributes: dict[str, str | int | float]) -> Document:
    return Document(
        name, ", ".join(f"{key} {value}" for key, value in attributes.items()), attributes
    )


# ---------- files


@lru_cache(maxsize=8)
def read_file(path: str) -> tuple["Index", list[Question]]:
    """Read a file of JSON lines.

    Returns: an `Index` of the file's items and passages; the list of the file's questions.
    Raises: UserError if the file cannot be read, has a wrong line or has no document.
    """
    documents = {}
    questions = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = read_row(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: {describe_line_error(error)}") from error
        if isinstance(row, Question):
            questions.append(row)
        elif row.name.casefold() in documents:
            raise UserError(f"{path}:{number}: the name {row.name!r} is on an earlier line, too")
        else:
            documents[row.name.casefold()] = row
    if not documents:
        raise UserError(
            f"{path} has no items and no passages; "
            "worlds/text/documents.py shows the format of the file"
        )
    return Index(list(documents.values())), questions


def read_lines(path: str) -> list[bytes]:
    try:
        check_plain(Path(path))
        if Path(path).stat().st_size > MAX_FILE:
            raise UserError(f"{path} is larger than {MAX_FILE // 10**6} MB")
        return Path(path).read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); expected JSON lines") from error


def check_plain(path: Path) -> None:
    """Raise OSError for a named pipe or a device, because reading it may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a named pipe or a device", str(path))


def read_row(line: bytes) -> Document | Question:
    """Read a line. Raises: ValueError if the line is no item, passage or question."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("expected a JSON object")
    if "question" in row:
        answers = row.get("answer")
        answers = answers if isinstance(answers, list) and answers else [answers]
        checked = tuple(str(read_value(answer, "answer")) for answer in answers)
        text = read_text(row["question"], "question", MAX_QUESTION)
        return Question(text, checked, read_steps(row.get("steps", [])))
    if "title" in row:
        name = read_name(row["title"], "title")
        return Document(name, read_text(row.get("text"), "text", MAX_FILE), {})
    attributes = {}
    for key, value in row.items():
        if key != "name":
            attributes[read_text(key, "a key", MAX_NAME)] = read_value(value, key)
    return item(read_name(row.get("name"), "name"), attributes)


def read_steps(value: object) -> tuple[str, ...]:
    """Read the steps of a question.

    Raises: ValueError if `value` is not a list of legal calls of `search` or `calc`."""
    if not isinstance(value, list):
        raise ValueError(f"steps must be a list of calls, got {printable(repr(value), limit=50)}")
    steps = []
    for step in value:
        call = read_call_text(step, "a step", MAX_VALUE)
        tool, _, text = call.partition(" ")
        is_sum = tool == "calc" and evaluate_expression(text) is not None
        if not is_sum and not (tool == "search" and text):
            raise ValueError(f"a step must be 'search WORDS' or 'calc EXPRESSION', got {call!r}")
        steps.append(call)
    return tuple(steps)


def read_name(value: object, key: str) -> str:
    """Read the name of an item or the title of a passage.

    A name must have a letter, a digit or _, because a search for any other name finds nothing.

    Raises: ValueError if `read_call_text` refuses the name, or if the name has no letter, digit
        or _."""
    name = read_call_text(value, key, MAX_NAME)
    if not words_of(name):
        raise ValueError(f"{key} {name!r} has no letter and no digit")
    return name


def read_value(value: object, key: str) -> str | int | float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number:
        return read_call_text(value, key, MAX_VALUE)
    if not abs(value) < MAX_NUMBER:  # this test also refuses nan
        raise ValueError(f"{key} is {value!r:.50}; expected an absolute value below {MAX_NUMBER:,}")
    return value


def read_call_text(value: object, key: str, limit: int) -> str:
    """Read a text that an action can contain.

    Raises: ValueError if `read_text` refuses the text, or if the text has `||` or `</answer>`."""
    text = read_text(value, key, limit)
    if "||" in text or "</answer>" in text:
        raise ValueError(f"{key} {text!r} contains || or </answer>, which no action can contain")
    return text


def read_text(value: object, key: str, limit: int) -> str:
    """Read a text, and replace its whitespace by single spaces.

    Raises: ValueError if `value` is no text, or if it is empty, too long or not printable."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text.isprintable() or not 0 < len(text) <= limit:
        raise ValueError(
            f"{key} must be a printable text of at most {limit:,} characters, "
            f"got {printable(repr(value), limit=50)}"
        )
    return text


# ---------- search


class Index:
    """Finds documents by the words of a query."""

    def __init__(self, documents: list[Document]):
        self.documents = documents
        self.folded = [f"{document.name} {document.text}".casefold() for document in documents]
        places: dict[str, list[int]] = {}
        for number, text in enumerate(self.folded):
            for word in words_of(text):
                places.setdefault(word, []).append(number)
        # maps each word to the ascending indices of the documents that contain the word
        self.places = {word: np.array(numbers) for word, numbers in places.items()}
        # the words of each document's name, without articles
        self.name_words = [words_of(drop_articles(document.name)) for document in documents]
        # cache that maps `most` to the result of `found_by_name(most)`
        self.nameable: dict[int, set[int]] = {}

    def search(self, query: str, most: int) -> list[Document]:
        """Return up to `most` documents that share a word with the query, the best first.

        N is the number of all documents. If n documents contain a word of the query, the word adds
        log(1 + N / n) to the score of each of these n documents.
        """
        scores = np.zeros(len(self.documents))
        # A set has a random order, and the order changes the rounding of the sums. Sorted words
        # give every run the same sums.
        for word in sorted(words_of(query)):
            numbers = self.places.get(word)
            if numbers is not None:
                scores[numbers] += math.log(1 + len(self.documents) / len(numbers))
        found = []
        for _ in range(most):
            best = int(scores.argmax())  # argmax returns the first of equal scores
            if scores[best] == 0:
                break
            found.append(self.documents[best])
            scores[best] = 0
        return found

    def named_in(self, text: str) -> list[Document]:
        """Return the documents that `text` names, the longest name first.

        `text` names a document if `text` has all words of the document's name. Articles in the name
        do not count."""
        words = words_of(text)
        named = []
        for document, own in zip(self.documents, self.name_words, strict=True):
            if own and own <= words:
                named.append(document)
        return sorted(named, key=lambda document: len(document.name), reverse=True)

    def found_by_name(self, most: int) -> set[int]:
        """Return the indices of the documents that a search for their own name finds.

        Args: most: largest number of results of a search."""
        if most not in self.nameable:
            numbers = range(len(self.documents))
            self.nameable[most] = {number for number in numbers if self._is_found(number, most)}
        return self.nameable[most]

    def _is_found(self, number: int, most: int) -> bool:
        """Whether a search for the name of document `number` finds the document.

        The search returns up to `most` documents with the highest scores.

        Document `number` has the highest possible score, because it contains all words of its name.
        Every other document that contains all words of this name has the same score. Of two
        documents with the same score, the search returns the document with the smaller index first.
        So the search finds document `number` if fewer than `most` documents with a smaller index
        contain all words of its name.
        """
        words = words_of(self.documents[number].name)
        rarest, *others = sorted((self.places[word] for word in words), key=len)
        num_before = 0
        for earlier in rarest.tolist():
            if earlier == number:
                break
            num_before += all(contains(numbers, earlier) for numbers in others)
            if num_before == most:
                return False
        return True


def contains(rising: np.ndarray, number: int) -> bool:
    place = int(np.searchsorted(rising, number))
    return place < len(rising) and rising[place] == number


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
