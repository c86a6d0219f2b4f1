"""Tools: answer questions by calling a search, a calculator and a key-value store.

`ToolUse` asks about the towns in documents.py, which are the same in every game. So a policy can
learn the facts about the towns by heart. The key-value store differs from game to game.
`OwnData` takes items, passages and questions from a user's file.
"""

from configurator import UserError

import re
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from envs import MAX_DRAWS, SPLIT_SIZE, Env, Move
from worlds.countdown import evaluate_expression
from worlds.text.base import drop_articles
from worlds.text.documents import Document, Index, Question, bundled_towns, read_file

TASKS = ("find", "fetch", "sum", "put")
TOOLS = ("search", "calc", "get", "put", "answer")
KEYS = ("box", "wall", "floor", "corner", "edge", "board")
KEY = re.compile(r"\w{1,20}")  # a key that `put` accepts
MAX_TEXT = 200  # characters of a call after the name of the tool
MAX_SHOWN = 300  # characters of a document's text in a search result
MAX_ANSWERS = 100  # right answers that a `find` question may have
MAX_STORED = 99  # the largest number in the store of a new game; the smallest is 11


class Step(NamedTuple):
    """A call that the optimal player makes before the last call of a game."""

    call: str
    proof: str  # the call is not needed once `ToolUse.proofs` contains this text
    note: str  # what the call shows; `ToolUse.statements` lists it


class Task(NamedTuple):
    """The question and store of a game, and the calls that solve it."""

    question: str
    store: tuple[tuple[str, str], ...]  # (key, value) pairs
    steps: tuple[Step, ...]
    last_calls: tuple[str, ...]  # each of these calls wins; the optimal player makes the first


class ToolUse(Env):
    """Tasks about the bundled towns.

    The optimal player makes 2 calls in a `find` task, 3 calls in a `fetch` task, 4 calls in a
    `sum` task and 5 calls in a `put` task.
    """

    noun = "town"

    def __init__(self, *, task: str = "all", results: int = 2, **common):
        super().__init__(**common)
        if task not in ("all", *TASKS) or not 1 <= results <= 20:
            raise UserError(
                f"tools needs 1 to 20 results, and task=all or one of {', '.join(TASKS)}; "
                f"got task={task}, results={results}"
            )
        self.tasks = TASKS if task == "all" else (task,)
        self.num_results = results
        self.index = town_index()

    # ---------- instances

    def draw(self, rng: np.random.Generator) -> tuple:
        for _ in range(MAX_DRAWS):
            kind = str(rng.choice(self.tasks))
            task = getattr(self, f"_draw_{kind}")(rng)
            if task:
                return ("tools", *task)
        raise UserError(f"these {self.noun}s give no task of the kind {', '.join(self.tasks)}")

    def _draw_find(self, rng: np.random.Generator) -> Task | None:
        """Draw a `find` question: which item has the one or two wanted attributes?

        The query of the optimal player holds the wanted texts and leaves out the wanted numbers.
        Returns: None if this query finds no item with all wanted attributes (see `fits`), or if
            more than MAX_ANSWERS items have all wanted attributes."""
        target = self._draw_item(rng)
        wanted = {}
        for key in rng.permutation(list(target.attributes)).tolist()[:2]:
            wanted[key] = target.attributes[key]
        query = " ".join(value for value in wanted.values() if isinstance(value, str))
        found = self.index.search(query[:MAX_TEXT], self.num_results)
        seen = [document.name for document in found if fits(document, wanted)]
        if not seen:
            return None
        fitting = (document.name for document in self.index.documents if fits(document, wanted))
        names = list(islice(fitting, MAX_ANSWERS + 1))
        if len(names) > MAX_ANSWERS:
            return None
        others = [name for name in names if name != seen[0]]
        conditions = " and ".join(condition(key, value) for key, value in sorted(wanted.items()))
        return Task(
            question=f"Which {self.noun} has {conditions}?",
            store=(),
            steps=(Step(f"search {query[:MAX_TEXT]}", f"document {seen[0]}", seen[0]),),
            last_calls=tuple(f"answer {name}" for name in (seen[0], *others)),
        )

    def _draw_fetch(self, rng: np.random.Generator) -> Task:
        """Draw a `fetch` question: an attribute of the item whose name is stored under a key."""
        document = self._draw_item(rng)
        attribute = str(rng.choice(list(document.attributes)))
        key, other = rng.permutation(KEYS)[:2].tolist()
        store = self._draw_store({key: document.name, other: self._draw_item(rng).name}, rng)
        return Task(
            question=f"What is the {attribute} of the {self.noun} stored as {key}?",
            store=store,
            steps=(get_step(key, document.name), search_step(document, attribute)),
            last_calls=(f"answer {document.attributes[attribute]}",),
        )

    def _draw_sum(self, rng: np.random.Generator) -> Task | None:
        """Draw a `sum` question: what is the sum of the same attribute of two items?

        Returns: None if the names of the two drawn items are not in alphabetical order, because
            each pair of items is asked about in one order only. Also None if the attribute of one
            of the two items is not a whole number."""
        first = self._draw_item(rng)
        second = self._draw_item(rng)
        attribute = self._draw_number(first, rng)
        if not first.name < second.name or not is_whole(second, attribute):
            return None
        numbers = [first.attributes[attribute], second.attributes[attribute]]
        return Task(
            question=f"What is the {attribute} of {first.name} plus the {attribute} of "
            f"{second.name}?",
            store=(),
            steps=(
                search_step(first, attribute),
                search_step(second, attribute),
                sum_step(*numbers),
            ),
            last_calls=(f"answer {sum(numbers)}",),
        )

    def _draw_put(self, rng: np.random.Generator) -> Task | None:
        """Draw a `put` task: add an item's attribute to a stored number, and store the sum.

        Returns: None if no attribute of the drawn item is a whole number."""
        document = self._draw_item(rng)
        attribute = self._draw_number(document, rng)
        if not attribute:
            return None
        name_key, number_key, target = rng.permutation(KEYS)[:3].tolist()
        number = int(rng.integers(11, MAX_STORED + 1))
        value = document.attributes[attribute]
        return Task(
            question=f"Put the {attribute} of the {self.noun} stored as {name_key} plus the number "
            f"stored as {number_key} into {target}.",
            store=self._draw_store({name_key: document.name, number_key: str(number)}, rng),
            steps=(
                get_step(name_key, document.name),
                search_step(document, attribute),
                get_step(number_key, str(number)),
                sum_step(value, number),
            ),
            last_calls=(f"put {target} {value + number}",),
        )

    def _draw_item(self, rng: np.random.Generator) -> Document:
        """Return a random document that a search for its own name finds."""
        numbers = self.index.found_by_name(self.num_results)
        # The loop ends, because a search for the name of document 0 always finds document 0.
        while True:
            number = int(rng.integers(len(self.index.documents)))
            if number in numbers:
                return self.index.documents[number]

    def _draw_number(self, document: Document, rng: np.random.Generator) -> str:
        """Return the name of a random attribute that is a whole number, or "" if there is none."""
        names = [name for name in document.attributes if is_whole(document, name)]
        return str(rng.choice(names)) if names else ""

    def _draw_store(self, values: dict[str, str], rng: np.random.Generator) -> tuple:
        items = list(values.items())
        return tuple(items[number] for number in rng.permutation(len(items)).tolist())

    def _start(self, instance: tuple) -> None:
        task = Task(*instance[1:])
        self.question = task.question
        self.store = dict(task.store)
        self.steps = [Step(*step) for step in task.steps]
        self.last_calls = task.last_calls
        # `proofs` holds "document NAME" for each document found so far, "key KEY" for each key
        # read, "value NUMBER" for each value calculated and "call CALL" for each call made.
        self.proofs: set[str] = set()
        self.result = ""

    # ---------- calls

    def _read(self, action: str) -> tuple[str, str] | None:
        words = action.split()
        tool = words[0].lower() if words else ""
        text = " ".join(words[1:])
        if tool not in TOOLS or not 0 < len(text) <= MAX_TEXT or not text.isprintable():
            return None
        if tool == "calc" and evaluate_expression(text) is None:
            return None
        if tool == "get" and text not in self.store:
            return None
        if tool == "put" and (len(words) < 3 or not KEY.fullmatch(words[1])):
            return None
        return tool, text

    def _move(self, call: tuple[str, str]) -> Move:
        tool, text = call
        before = self.result
        self.result = getattr(self, f"_{tool}")(text)
        key = text.split()[0]
        is_last = tool == "answer" or self.last_calls[0].startswith(f"{tool} {key} ")
        accepted = map(normalized, self.last_calls)
        success = is_last and normalized(f"{tool} {text}") in accepted
        effective = is_last or self.result != before
        self.proofs.add(f"call {normalized(f'{tool} {text}')}")
        return Move(float(success), terminated=is_last, success=success, effective=effective)

    def _search(self, text: str) -> str:
        lines = []
        for document in self.index.search(text, self.num_results):
            self.proofs.add(f"document {document.name}")
            lines.append(result_of(document))
        return "\n".join(lines) or "Nothing found."

    def _calc(self, text: str) -> str:
        _, value = evaluate_expression(text)
        self.proofs.add(f"value {value}")
        return f"{text} = {value}."

    def _get(self, key: str) -> str:
        self.proofs.add(f"key {key}")
        return f"{key}: {self.store[key]}."

    def _put(self, text: str) -> str:
        key, _, value = text.partition(" ")
        self.store[key] = value
        return f"{key}: {value}."

    def _answer(self, text: str) -> str:
        return "The end."

    # ---------- texts

    def observe(self) -> str:
        lines = [self.question]
        if self.store:
            lines.append(f"Store: {', '.join(self.store)}.")
        if self.result:
            lines.append(self.result)
        return "\n".join(lines)

    def rules(self) -> str:
        return (
            "Do a task with tools. Calls: search WORDS; calc EXPRESSION, with whole numbers; "
            "get KEY and put KEY VALUE, for the store; answer TEXT, which ends the game. "
            "Reward 1 for the right answer."
        )

    def statements(self) -> list[str]:
        notes = [step.note for step in self.steps if step.proof in self.proofs]
        # dialogue.py splits the policy's thought at full stops, and then compares each part with
        # the statements. No part could equal a statement with a full stop inside. So a note with a
        # full stop is left out.
        whole = [note for note in notes if "." not in note]
        return [f"Known {', '.join(whole) or 'nothing'}."]

    # ---------- players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return only the next call, so that the player reads the result of each call.

        If the task needs more calls than there are turns left, return up to `max_actions` calls."""
        calls = self._missing_calls()
        return calls[:max_actions] if len(calls) > turns_left else calls[:1]

    def optimal_length(self) -> int:
        return len(self._missing_calls())

    def _missing_calls(self) -> list[str]:
        calls = [step.call for step in self.steps if step.proof not in self.proofs]
        return [*calls, self.last_calls[0]]

    def greedy(self) -> str:
        """First search with the question as query, then answer with the last word of the result."""
        if not self.result:
            return f"search {self.question[:MAX_TEXT]}"
        return f"answer {self.result.rstrip('.').split()[-1][:MAX_TEXT]}"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        calls = []
        for _ in range(count):
            name = self._draw_item(rng).name
            number = int(rng.integers(2 * MAX_STORED))
            choices = [
                f"search {name}",
                f"calc {number} + {int(rng.integers(MAX_STORED))}",
                f"put {rng.choice(KEYS)} {number}",
                f"answer {name}",
                f"answer {number}",
            ]
            choices += [f"get {key}" for key in self.store]
            calls.append(choices[rng.integers(len(choices))])
        return calls


class OwnData(ToolUse):
    """Tasks from a user's file (items, passages, questions). The tools are those of `ToolUse`.

    If the file has questions, the questions are the tasks. Otherwise `draw` makes tasks about the
    items.
    """

    # True, because `OwnData` reads a file. See the comment at `Env.runs_programs`.
    runs_programs = True

    def __init__(
        self,
        *,
        file: str = "items.jsonl",
        noun: str = "item",
        task: str = "all",
        results: int = 3,
        **common,
    ):
        super().__init__(task=task, results=results, **common)
        self.noun = noun
        self.index, self.questions = read_file(file)
        documents = self.index.documents
        if not self.questions and not all(document.attributes for document in documents):
            raise UserError(
                f"{file} has no questions, so it must have items with attributes and nothing else"
            )
        # Without questions, a task asks only about items that a search for their own name finds.
        asked_about = self.questions or self.index.found_by_name(results)
        if task == "all":
            self.tasks = possible_tasks(documents)
        few = 4 * SPLIT_SIZE if self.questions or task == "find" else 100
        # Fewer than `few` questions or items give too few tasks to keep training and evaluation
        # apart. In this case, training and evaluation share the tasks.
        self.repeats = len(asked_about) < few

    def draw(self, rng: np.random.Generator) -> tuple:
        if not self.questions:
            return super().draw(rng)
        question = self.questions[rng.integers(len(self.questions))]
        last_calls = tuple(f"answer {answer}" for answer in question.answers)
        return ("tools", *Task(question.text, (), self._steps_to(question), last_calls))

    def _steps_to(self, question: Question) -> tuple[Step, ...]:
        """Return a question's steps from the file, or up to two searches if the file gives none.

        The first queries are the document names whose words are all in the question. The last query
        is all words of the question. The first query whose results show the answer
        `question.answers[0]` is the only search. If no results show the answer, the first search
        uses the first query that finds anything, and the second search uses the name of a document
        with the answer.
        """
        if question.steps:
            return tuple(Step(call, f"call {normalized(call)}", call) for call in question.steps)
        answer = question.answers[0]
        queries = [document.name for document in self.index.named_in(question.text)]
        queries.append(" ".join(re.findall(r"\w+", question.text))[:MAX_TEXT].strip())
        for query in queries:
            for document in self.index.search(query, self.num_results):
                if has_answer(document, answer):
                    return (Step(f"search {query}", f"document {document.name}", answer),)
        return (*self._first_look(queries), *self._search_for_answer(answer))

    def _first_look(self, queries: list[str]) -> tuple[Step, ...]:
        for query in queries:
            found = self.index.search(query, self.num_results)
            if found:
                return (Step(f"search {query}", f"document {found[0].name}", found[0].name),)
        return ()

    def _search_for_answer(self, answer: str) -> tuple[Step, ...]:
        """Return one step, a search that shows the answer. The query is the name of a document.

        Return () if no document with the answer can be found by its own name.
        """
        folded = answer.casefold()
        for document, text in zip(self.index.documents, self.index.folded, strict=True):
            if folded not in text or not has_answer(document, answer):
                continue
            if document in self.index.search(document.name, self.num_results):
                call = f"search {document.name}"
                return (Step(call, f"document {document.name}", answer),)
        return ()


@lru_cache(maxsize=1)
def town_index() -> Index:
    return Index(bundled_towns())


def possible_tasks(documents: list[Document]) -> tuple[str, ...]:
    """Return the kinds of tasks that the items allow.

    `sum` and `put` need an attribute that is a whole number."""
    for document in documents:
        if any(is_whole(document, name) for name in document.attributes):
            return TASKS
    return ("find", "fetch")


def result_of(document: Document) -> str:
    """Return the line that the results of a search show for a document."""
    return f"{document.name}: {document.text[:MAX_SHOWN].removesuffix('.')}."


def has_answer(document: Document, answer: str) -> bool:
    return answer.casefold() in result_of(document).casefold()


def normalized(call: str) -> str:
    """Return the call in lower case, without articles, final full stops and extra spaces."""
    return drop_articles(call.rstrip(".").casefold())


def is_whole(document: Document, attribute: str) -> bool:
    """Whether an attribute is a whole number that the calculator can read."""
    value = document.attributes.get(attribute)
    return isinstance(value, int) and value >= 0


def condition(key: str, value: str | float) -> str:
    return f"{key} {value}" if isinstance(value, str) else f"{key} at most {value}"


def fits(document: Document, wanted: dict[str, str | int | float]) -> bool:
    """Whether a document has the wanted attributes. A wanted number is an upper bound."""
    for key, value in wanted.items():
        own = document.attributes.get(key)
        if isinstance(value, str):
            if own != value:
                return False
        elif isinstance(own, str) or own is None or own > value:
            return False
    return True


def get_step(key: str, value: str) -> Step:
    return Step(f"get {key}", f"key {key}", f"{key} {value}")


def search_step(document: Document, attribute: str) -> Step:
    note = f"{attribute} of {document.name} {document.attributes[attribute]}"
    return Step(f"search {document.name}", f"document {document.name}", note)


def sum_step(first: int, second: int) -> Step:
    total = first + second
    return Step(f"calc {first} + {second}", f"value {total}", f"sum {total}")
