"""Bounds the cost of a condition, so that a rule stays far below CEL's own limit of 10,000 loop iterations.

CEL has no recursion and no assignment, so time grows only where something is repeated: loops, texts and lists joined to
longer ones, regular expressions. With facts that are cut to size (aft.rules.cases.facts) these bounds keep the
evaluation of any condition that passes under 100 ms, and of an ordinary one at some microseconds:

- few loops, none inside another, none over what ``map`` or ``+`` made: a loop has as many turns as a fact has entries
- in loops: few comparisons of what may be large, few searches, hardly any ``+``
- regular expressions are literals, and together not large; one in a loop is counted for each of its turns

This is no parser: it sees words, signs and brackets, and leaves everything else to CEL, which reads the condition
after it. Where the two could differ, in literals and comments, CEL refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from aft.rules.cases.facts import WIDE, FactType
from aft.rules.cel.refusals import refusal
from aft.texts import find_unstorable

#: Characters of a condition.
MOST_SOURCE = 1_000
#: Loops, and how many of them may make new lists.
MOST_LOOPS, MOST_MAPS = 10, 1
#: Times that ``+`` may stand in one condition, and in all of its loops.
MOST_JOINS, MOST_JOINS_LOOPED = 20, 1
#: In all loops: comparisons of two values that may be large, and texts that are searched or converted.
MOST_DEEP_LOOPED, MOST_SEARCHES_LOOPED = 20, 3
#: Size of all regular expressions: their characters, counted repetitions multiplied out.
MOST_PATTERN = 1_000
#: How many times over one in a loop counts, and each repetition of a sign.
_LOOPED, _COUNTED = 30, 4

LOOPS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})
#: Functions that read every character of a text, or more than once.
_SEARCHES = frozenset({"contains", "string", "bytes"})
_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())

_TOKEN = re.compile(
    r"""
      (?P<skip>[ \t\r\n\f]+|//[^\n]*)
    | (?P<text>[bB]?[rR](?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"[^"\r\n]*"|'[^'\r\n]*')
              |[bB]?(?:\"{3}(?:\\[\s\S]|[^\\])*?\"{3}|'{3}(?:\\[\s\S]|[^\\])*?'{3}
                      |"(?:\\.|[^\\"\r\n])*"|'(?:\\.|[^\\'\r\n])*'))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*|`[^`\n]*`)
    | (?P<number>[0-9][A-Za-z0-9_]*(?:\.[0-9][A-Za-z0-9_]*)?)
    | (?P<sign>[\s\S])
    """,
    re.VERBOSE,
)
_REPEATED = re.compile(r"([)}])?\{(\d+)(?:,(\d*))?\}")
#: A character by its number, in a literal that is not raw: it could be a bracket of a repetition.
_HIDDEN = re.compile(r"(?<!\\)(?:\\\\)*\\[xXuU0-7]")
#: Classes of Unicode's: thousands of states each.
_UNICODE = re.compile(r"\\[pP]")


@dataclass(frozen=True, slots=True)
class Token:
    """One word, sign or literal of a condition."""

    kind: str  #: text, word, number or sign
    text: str
    at: int  #: its first character


@dataclass(frozen=True, slots=True)
class _Loop:
    name: Token
    over: tuple[Token, ...]
    body: tuple[Token, ...]


@lru_cache(maxsize=4096)
def tokens(source: str) -> tuple[Token, ...]:
    """Return the words, signs and literals of a condition, without comments."""
    return tuple(
        Token(found.lastgroup or "", found[0], found.start())
        for found in _TOKEN.finditer(source)
        if found.lastgroup != "skip"
    )


def mentioned(found: tuple[Token, ...], kinds: Mapping[str, FactType]) -> Iterator[Token]:
    """Yield the places where facts are mentioned; may yield one that is none, but misses none."""
    for first, dot, last in zip(found, found[1:], found[2:], strict=False):
        if dot.text == "." and first.kind == last.kind == "word":
            # CEL lets a name after a dot stand between backticks.
            name = f"{first.text}.{last.text.strip('`')}"
            if name in kinds:
                yield Token("fact", name, first.at)


def check(source: str, kinds: Mapping[str, FactType]) -> None:
    """Raise RuleRefused if the condition may cost too much; syntax and types are not checked."""
    _check_size(source)
    found = tokens(source)
    closes = _brackets(found)
    loops = list(_loops(found, closes))
    _check_loops(source, loops, kinds)
    _at_most(source, _joins(found), MOST_JOINS, "it would add or join more than {} times")
    _check_patterns(source, found, closes, loops)


def patterns(source: str) -> Iterator[Token]:
    """Yield the regular expressions of a condition that has passed :func:`check`, as they are written."""
    found = tokens(source)
    for _, pattern in _matches(found, _brackets(found)):
        if pattern is not None:
            yield pattern


def _check_size(source: str) -> None:
    if len(source) > MOST_SOURCE:
        raise refusal(
            source,
            MOST_SOURCE,
            f"it has {len(source):,} characters",
            f"{MOST_SOURCE:,} are the most; make two rules of it",
        )
    if source.isprintable():
        return
    for at, character in enumerate(source):
        if find_unstorable(character, lines=True) is not None:
            raise refusal(
                source.replace(character, "\ufffd"), at, f"it has the character {character!r}", "leave it out"
            )


def _brackets(found: tuple[Token, ...]) -> dict[int, int]:
    """Return opening bracket -> its closing one, by position in the list, and the other way round."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for here, token in enumerate(found):
        if token.kind != "sign":
            continue
        if token.text in _OPENING:
            opened.append(here)
        elif token.text in _CLOSING and opened:
            before = opened.pop()
            pairs[before], pairs[here] = here, before
    # What is never closed goes on to the end: CEL refuses it later.
    pairs.update((before, len(found)) for before in opened)
    return pairs


def _loops(found: tuple[Token, ...], closes: Mapping[int, int]) -> Iterator[_Loop]:
    for here in range(2, len(found) - 1):
        name = found[here]
        if name.text in LOOPS and name.kind == "word" and found[here - 1].text == "." and found[here + 1].text == "(":
            begin = _receiver(found, closes, here - 2)
            yield _Loop(name, found[begin : here - 1], found[here + 2 : closes[here + 1]])


def _receiver(found: tuple[Token, ...], closes: Mapping[int, int], last: int) -> int:
    """Return where the part begins that ends at ``last``: names, dots, calls and what stands in their brackets."""
    here = last
    while here >= 0:
        token = found[here]
        if token.kind == "sign" and token.text in _CLOSING:
            here = closes.get(here, 0)
        elif token.text == "in" or (token.kind == "sign" and token.text != "."):
            break
        here -= 1
    return here + 1


def _check_loops(source: str, loops: list[_Loop], kinds: Mapping[str, FactType]) -> None:
    names = [loop.name for loop in loops]
    _at_most(source, names, MOST_LOOPS, "it has more than {} loops")
    _at_most(source, [name for name in names if name.text == "map"], MOST_MAPS, "it has more than {} 'map'")
    for loop in loops:
        inner = next((name for name in names if name in loop.body), None)
        if inner is not None:
            raise refusal(
                source,
                inner.at,
                f"{inner.text!r} is a loop inside the loop {loop.name.text!r}",
                "its time would grow with the product of both; register a source that answers this, or make two rules",
            )
        _check_over(source, loop, loops, kinds)
        _check_body(source, loop, kinds)
    inside = tuple(token for loop in loops for token in loop.body)
    searches = [token for token in inside if token.kind == "word" and token.text in _SEARCHES]
    _at_most(source, list(_deep(inside)), MOST_DEEP_LOOPED, "its loops compare more than {} times")
    _at_most(source, searches, MOST_SEARCHES_LOOPED, "its loops search or convert texts more than {} times")
    _at_most(source, _joins(inside), MOST_JOINS_LOOPED, "its loops would add or join more than {} times")


def _at_most(source: str, found: list[Token], most: int, what: str) -> None:
    if len(found) > most:
        raise refusal(source, found[most].at, what.format(most), "make two rules of it, or register a source")


def _check_body(source: str, loop: _Loop, kinds: Mapping[str, FactType]) -> None:
    """Refuse a loop that compares, and mentions more than one large fact: that is repeated each turn."""
    facts = list(_wide(loop.body, kinds))
    if len(facts) > 1 and any(_deep(loop.body)):
        raise refusal(
            source,
            facts[1].at,
            f"the loop {loop.name.text!r} compares, and mentions more than one fact that may be large",
            "compare with a literal, or ask outside of the loop what does not change with each turn",
        )


def _deep(found: tuple[Token, ...]) -> Iterator[Token]:
    """Yield comparisons for equality that have no literal beside them: both sides may be large."""
    for here, token in enumerate(found):
        pair = token.text + (found[here + 1].text if here + 1 < len(found) else "")
        wide = 2 if pair in ("==", "!=") else int((token.kind, token.text) == ("word", "in"))
        if wide and not (_literal(found[here - 1 : here]) or _literal(found[here + wide : here + wide + 1])):
            yield token


def _literal(found: tuple[Token, ...]) -> bool:
    return any(token.kind in ("text", "number") or token.text in ("true", "false", "null") for token in found)


def _check_over(source: str, loop: _Loop, loops: list[_Loop], kinds: Mapping[str, FactType]) -> None:
    maps = {other.name for other in loops if other.name.text == "map"}
    grown = next((token for token in loop.over if token in maps or (token.kind, token.text) == ("sign", "+")), None)
    if grown is not None:
        raise refusal(
            source,
            grown.at,
            f"{loop.name.text!r} loops over what {grown.text!r} makes",
            "loop over a fact itself, or over what 'filter' leaves of it",
        )
    facts = list(_wide(loop.over, kinds))
    if len(facts) > 1:
        raise refusal(
            source, facts[1].at, f"{loop.name.text!r} loops over more than one fact", "make a loop for each of them"
        )


def _wide(found: tuple[Token, ...], kinds: Mapping[str, FactType]) -> Iterator[Token]:
    return (token for token in mentioned(found, kinds) if kinds[token.text] in WIDE)


def _joins(found: tuple[Token, ...]) -> list[Token]:
    return [token for token in found if (token.kind, token.text) == ("sign", "+")]


def _matches(found: tuple[Token, ...], closes: Mapping[int, int]) -> Iterator[tuple[Token, Token | None]]:
    """Yield each call of ``matches`` with its pattern; None if that is not a single literal."""
    for here in range(len(found) - 1):
        call = found[here]
        if call.text != "matches" or call.kind != "word" or found[here + 1].text != "(":
            continue
        close = closes[here + 1]
        pattern = found[close - 1]
        alone = pattern.kind == "text" and found[close - 2].text in ("(", ",") and found[close - 2].kind == "sign"
        yield call, pattern if alone else None


def _check_patterns(source: str, found: tuple[Token, ...], closes: Mapping[int, int], loops: list[_Loop]) -> None:
    whole = 0
    for call, pattern in _matches(found, closes):
        if pattern is None:
            raise refusal(
                source,
                call.at,
                "its regular expression is not a literal",
                "write it between quotes, as in fault.text.matches('time[d]? out'), or use contains(…)",
            )
        _check_spelling(source, pattern)
        looped = any(call in loop.body for loop in loops)
        whole += _weigh(pattern.text) * (_LOOPED if looped else 1)
        if whole > MOST_PATTERN:
            raise refusal(
                source,
                pattern.at,
                "its regular expressions are too large" + (" for a loop" if looped else ""),
                "shorten them, count fewer repetitions, or use contains(…), startsWith(…), endsWith(…)",
            )


def _check_spelling(source: str, pattern: Token) -> None:
    if _HIDDEN.search(pattern.text) and "r" not in pattern.text[:2].lower():
        raise refusal(
            source, pattern.at, "its regular expression has characters written by number", "write them as they are"
        )
    if _UNICODE.search(pattern.text):
        raise refusal(
            source, pattern.at, "its regular expression has a class of Unicode's", "write a range, as in [A-Za-z]"
        )


def _weigh(literal: str) -> int:
    """Return the size of a pattern, counted repetitions multiplied out: of groups they multiply, of signs they add."""
    size, times = len(literal), 1
    for closed, least, most in _REPEATED.findall(literal):
        count = max(1, *(int(number[:6]) for number in (least, most) if number))
        if closed:
            times *= count
        else:
            size += _COUNTED * count
    return size * times
