"""What a model is asked: to go on with a text, to copy from far back, to find a number."""

import random
from dataclasses import dataclass

from .models import LoadedModel


class TooShort(Exception):
    """A text with fewer tokens than a task needs."""


@dataclass(frozen=True)
class Task:
    """prompt is compressed; fed are the tokens after it, teacher forced. The outputs of
    fed[scored_from:] are judged, each against the token after it."""

    kind: str  # text, copy, needle
    name: str
    prompt: list[int]
    fed: list[int]
    targets: list[int]  # targets[i] is the token after fed[i]
    scored_from: int = 0
    group: str = ""  # needles: which question, and when it is asked
    depth: int = 0  # needles: per cent of the prompt before the fact


def _after(prompt: list[int], rest: list[int], scored: int, **about) -> Task:
    """`scored` last tokens of `rest` are targets; prompt holds at least one token."""
    return Task(
        prompt=prompt, fed=rest[:-1], targets=rest[1:], scored_from=len(rest) - 1 - scored, **about
    )


def _tokens(loaded: LoadedModel, text: str, n: int, what: str) -> list[int]:
    ids = [*loaded.begin, *loaded.encode(text)]
    if len(ids) < n:
        raise TooShort(f"{what} has {len(ids)} tokens, {n} are needed")
    return ids


def text_task(loaded: LoadedModel, name: str, text: str, n_prompt: int, n_eval: int) -> Task:
    """The next `n_eval` outputs after the first `n_prompt` tokens of a text. The output of the last
    prompt token is left out: it comes before compression."""
    ids = _tokens(loaded, text, n_prompt + n_eval + 1, f"text {name}")
    rest = ids[n_prompt : n_prompt + n_eval + 1]
    return _after(ids[:n_prompt], rest, n_eval, kind="text", name=name)


def copy_task(
    loaded: LoadedModel, name: str, text: str, n_prompt: int, n_eval: int, lead: int = 64
) -> Task:
    """A text that begins again: its passage after the first eighth is repeated at the end of the
    prompt for `lead` tokens, and its continuation is scored. All of it stands far back."""
    own = n_prompt - lead
    ids = _tokens(loaded, text, own, f"text {name}")[:own]
    first = own // 8
    passage = ids[first : first + lead + n_eval + 1]
    if len(passage) < lead + n_eval + 1:
        raise TooShort(f"a prompt of {n_prompt} tokens holds no passage of {lead + n_eval + 1}")
    rest = passage[lead:]
    return _after(ids + passage[:lead], rest, n_eval, kind="copy", name=name)


PLACES = ["Ramah", "Gibeah", "Hebron", "Shiloh", "Bethel", "Mizpah", "Gilgal", "Tirzah"]
FACT = "\nThe number that opens the gate of {place} is {number}.\n"
# The lexical question repeats the words of the fact, the paraphrase only the name of the place.
QUESTIONS = {
    "lexical": "\nQuestion: Which number opens the gate of {place}?\n"
    "Answer: The number that opens the gate of {place} is",
    "paraphrase": "\nQuestion: What must I key in to get into {place}?\n"
    "Answer: To get into {place} you have to key in",
}
DEPTHS = (10, 50, 90)


def needle_tasks(
    loaded: LoadedModel, name: str, text: str, n_prompt: int, trials: int
) -> list[Task]:
    """`trials` haystacks per depth, each with a fact and another place's fact as a decoy, asked in
    four ways: lexical or paraphrase, before compression (the question ends the prompt) or after it
    (`blind`). The question's last token is always fed after compression, so that every digit is
    predicted from compressed rows."""
    ids = _tokens(loaded, text, n_prompt, f"text {name}")
    tasks = []
    for depth in DEPTHS:
        for trial in range(trials):
            rng = random.Random(f"{name} {depth} {trial}")
            place, decoy = rng.sample(PLACES, 2)
            numbers = [str(rng.randrange(10000, 100000)) for _ in range(2)]
            fact = loaded.encode(FACT.format(place=place, number=numbers[0]))
            other = loaded.encode(FACT.format(place=decoy, number=numbers[1]))
            shift = rng.randrange(max(1, len(ids) - n_prompt))
            for question, words in QUESTIONS.items():
                ask = loaded.encode(words.format(place=place))
                answer = loaded.encode(" " + numbers[0])
                for asked in ("seen", "blind"):
                    room = n_prompt - len(fact) - len(other)
                    room -= len(ask) - 1 if asked == "seen" else 0
                    hay = [*loaded.begin, *ids[shift + len(loaded.begin) : shift + room]]
                    prompt = _with_facts(hay, fact, other, depth)
                    rest = ask + answer
                    if asked == "seen":
                        prompt, rest = prompt + ask[:-1], rest[len(ask) - 1 :]
                    tasks.append(
                        _after(
                            prompt, rest, len(answer), kind="needle",
                            name=f"{name} {depth}% #{trial}",
                            group=f"{question}, {asked}", depth=depth,
                        )
                    )  # fmt: skip
    return tasks


def _with_facts(hay: list[int], fact: list[int], decoy: list[int], depth: int) -> list[int]:
    """The fact after `depth` per cent, the decoy 30 % further on (around the end)."""
    at, decoy_at = len(hay) * depth // 100, len(hay) * ((depth + 30) % 100) // 100
    for place, rows in sorted([(at, fact), (decoy_at, decoy)], reverse=True):
        hay = hay[:place] + rows + hay[place:]
    return hay
