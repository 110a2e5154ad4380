"""The quickstart corpus: generated pairs of news sentences, to try, test and scale a training run without a download.

The task is to decide whether two sentences mean the same thing. A sentence is a layout with slots. A slot has groups of
interchangeable values, and a value has several surface forms. The second sentence shows two or three slots, the "touched"
ones, in a different form. In a "different" pair, one touched slot, or all of them, also has a different value.

The label does not affect which slots are touched, which forms they take, or how each sentence looks on its own. All forms
of a group have the same length and share the same words. Words, lengths and word overlap therefore have the same
distribution in both classes, and the label can only be found by comparing the two sentences.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import product
from string import Formatter
from typing import NamedTuple

LABEL_NAMES = ("different", "same")
Group = tuple[tuple[str, ...], ...]  # values, each of them a tuple of surface forms; one row a value, one column a form


def _group(*rows: str) -> Group:
    return tuple(tuple(form.strip() for form in row.split("|")) for row in rows)


def _swap(row: str) -> Group:
    """Return two values: the row, and the row with x and y exchanged."""
    return _group(row, row.replace("{x}", "{z}").replace("{y}", "{x}").replace("{z}", "{y}"))


_COUNTS = "one two three four five six seven eight nine ten eleven twelve".split()
_TENS = {15: "fifteen", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty"}
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_MONTHS = "January February March April May June July August September October November December".split()
_CAPITALS = (
    "Athens Greek, Beijing Chinese, Berlin German, Cairo Egyptian, Copenhagen Danish, Dublin Irish, Lisbon Portuguese, "
    "London British, Madrid Spanish, Moscow Russian, Oslo Norwegian, Paris French, Prague Czech, Rome Italian, "
    "Stockholm Swedish, Tokyo Japanese, Vienna Austrian, Warsaw Polish"
)
_SLOTS: dict[str, tuple[Group, ...]] = {
    # Formats of numbers, dates and places: many values.
    "number": (_group(*(f"{n} | {word}" for n, word in [*list(enumerate(_COUNTS, 1))[1:], *_TENS.items()])),),
    "hour": (_group(*(f"{n}:00 | {word} o'clock" for n, word in enumerate(_COUNTS, 1))),),
    "day": tuple(_group(*(f"{m} {n} | the {word} of {m}" for n, word in enumerate(_ORDINALS, 1))) for m in _MONTHS),
    "fraction": (
        _group("one half | 50 percent", "one third | 33 percent", "one quarter | 25 percent", "one fifth | 20 percent"),
    ),
    "place": (_group(*("{} | the {} capital".format(*entry.split()) for entry in _CAPITALS.split(", "))),),
    # Synonyms: several values.
    "group": (
        _group(
            "doctors | physicians", "lawyers | attorneys", "farmers | growers", "teachers | educators",
            "scientists | researchers", "journalists | reporters", "drivers | chauffeurs", "guards | watchmen",
        ),
    ),
    "action": (_group("bought | purchased", "inspected | examined", "repaired | fixed"),),
    "object": (
        _group(
            "cars | automobiles", "ships | vessels", "planes | aircraft", "shops | stores", "bikes | bicycles",
            "homes | houses", "trucks | lorries",
        ),
    ),
    "disaster": (_group("fire | blaze", "storm | gale", "flood | deluge", "blast | explosion", "quake | tremor"),),
    "building": (
        _group(
            "airport | airfield", "hospital | clinic", "museum | gallery", "prison | jail", "factory | plant",
            "hotel | inn",
        ),
    ),
    "weather": (
        _group(
            "rain | wet weather", "snow | wintry weather", "fog | misty weather", "wind | stormy weather",
            "heat | hot weather",
        ),
    ),
    # Opposites: two values.
    "direction": (_group("rose | climbed", "fell | dropped"),),
    "negation": (_group("could finally | managed to", "could not | failed to"),),
    "verdict": (_group("convicted {x} | found {x} guilty", "acquitted {x} | found {x} innocent"),),
    # Roles: two values, the same two names or events.
    "winner": (_group("{x} managed to beat {y} | {x} won against {y}", "{x} was beaten by {y} | {x} lost against {y}"),),
    "voice": tuple(_swap(f"{{x}} {verb} {{y}} | {{y}} was {verb} by {{x}}") for verb in ("sued", "blamed", "criticized")),
    "order": (_swap("{x} before {y} | {y} after {x}"),),
    # One form only: never touched.
    "bill": tuple(map(_group, ("tax plan", "trade treaty", "school reform", "budget", "climate law", "housing bill"))),
    "goods": tuple(map(_group, ("bread", "coffee", "gas", "steel", "milk", "rice", "gold", "sugar"))),
}  # fmt: skip
_FIRST_NAMES = "Nora Peter Petra Ruben Edith Simon Tessa Marco Ingrid Hugo Leah Owen Grace Felix Vera Karl".split()
_LAST_NAMES = "Hale Novak Reyes Marsh Keller Walsh Lund Frost Doyle Pratt Mercer Quinn Ferris Holt Winters Bauer".split()
_NAMES = {
    "people": [f"{first} {last}" for first, last in product(_FIRST_NAMES, _LAST_NAMES)],
    "companies": (
        "Amberline Brightwell Copperline Goldcrest Greyfield Halden Highmoor Ironbridge Keltrix Lakestone Lumora Northgate "
        "Norvane Novaro Oakwell Orbix Palden Quorix Rivermark Solmark Sunfield Tarvis Westmark Zentra"
    ).split(),
    "teams": (
        "Ashby Bradwell Brookside Eastwick Elmwood Fairhaven Greenford Hartfield Highfield Kingsford Lakemont Langley "
        "Larkfield Marston Milford Millbrook Northport Oakridge Ostley Redhill Stonebridge Thornton Westhaven Winslow"
    ).split(),
    "events": [
        "the strike ended", "the talks began", "the bridge closed", "the mayor resigned", "the lights went out",
        "the market opened", "the rain stopped", "the police arrived", "the minister spoke", "the crowd left",
        "the results came out", "the trains stopped", "the fire spread", "the schools closed", "the cameras arrived",
    ],
}  # fmt: skip
_TEMPLATES = (  # what x and y are, and the layouts
    ("companies", "{x} hired {number} {group} in {place}.", "in {place}, {x} hired {number} {group}."),
    ("companies", "shares in {x} {direction} by {fraction} on {day}.", "on {day}, shares in {x} {direction} by {fraction}."),
    ("companies", "{x} {negation} open an office in {place} on {day}.",
     "on {day}, {x} {negation} open an office in {place}."),
    ("companies", "{voice} over {number} {object} in {place}.", "in {place}, {voice} over {number} {object}."),
    ("companies", "{weather} in {place} delayed {number} {x} flights.", "in {place}, {weather} delayed {number} {x} flights."),
    ("people", "{voice} in {place} on {day}.", "on {day}, {voice} in {place}."),
    ("people", "lawmakers in {place} {negation} pass the {bill} on {day}.",
     "on {day}, lawmakers in {place} {negation} pass the {bill}."),
    ("people", "{x} {negation} visit the {building} at {hour}.", "at {hour}, {x} {negation} visit the {building}."),
    ("people", "forecaster {x} expects {weather} in {place} on {day}.",
     "on {day}, forecaster {x} expects {weather} in {place}."),
    ("people", "a court in {place} {verdict} on {day}.", "on {day}, a court in {place} {verdict}."),
    ("people", "a jury in {place} {verdict} at {hour}.", "at {hour}, a jury in {place} {verdict}."),
    ("people", "the price of {goods} in {place} {direction} by {fraction} on {day}.",
     "on {day}, the price of {goods} in {place} {direction} by {fraction}."),
    ("people", "the river in {place} {direction} by {number} inches on {day}.",
     "on {day}, the river in {place} {direction} by {number} inches."),
    ("people", "the {disaster} in {place} damaged {number} {object}.", "in {place}, the {disaster} damaged {number} {object}."),
    ("people", "the {disaster} struck the {building} in {place} at {hour}.",
     "at {hour}, the {disaster} struck the {building} in {place}."),
    ("people", "{group} in {place} {action} {number} {object}.", "in {place}, {group} {action} {number} {object}."),
    ("teams", "{winner} by {number} points in {place}.", "in {place}, {winner} by {number} points."),
    ("teams", "{winner} on {day}.", "on {day}, {winner}."),
    ("events", "{order} in {place} on {day}.", "on {day}, {order} in {place}."),
)  # fmt: skip


class _Template(NamedTuple):
    names: list[str]
    layouts: tuple[str, ...]
    slots: tuple[str, ...]
    touchable: tuple[str, ...]


def _template(names: str, *layouts: str) -> _Template:
    slots = tuple(field for _, field, _, _ in Formatter().parse(layouts[0]) if field in _SLOTS)
    return _Template(_NAMES[names], layouts, slots, tuple(slot for slot in slots if len(_SLOTS[slot][0][0]) > 1))


_PARSED = tuple(_template(*row) for row in _TEMPLATES)


class _Pair(NamedTuple):
    first: str
    second: str
    label: int
    touched: tuple[str, ...]  # the slots that the second sentence shows in another form
    changed: tuple[str, ...]  # those of them with another value


def _draw_pair(rng: random.Random, label: int) -> _Pair:
    template = rng.choice(_PARSED)
    x, y = rng.sample(template.names, 2)
    touched = tuple(rng.sample(template.touchable, min(rng.choice((2, 3)), len(template.touchable))))
    changed = () if label else touched if rng.random() < 0.5 else touched[:1]
    first, second = {"x": "{x}", "y": "{y}"}, {"x": "{x}", "y": "{y}"}
    for slot in template.slots:
        group = rng.choice(_SLOTS[slot])
        value = other = rng.randrange(len(group))
        form = other_form = rng.randrange(len(group[0]))
        if slot in touched:
            other_form = (form + rng.randrange(1, len(group[0]))) % len(group[0])
        if slot in changed:
            other = (value + rng.randrange(1, len(group))) % len(group)
        first[slot], second[slot] = group[value][form], group[other][other_form]
    texts = (rng.choice(template.layouts).format_map(shown).format(x=x, y=y) for shown in (first, second))
    one, two = (text[0].upper() + text[1:] for text in texts)
    return _Pair(one, two, label, touched, changed)


def _draw_pairs(num_examples: int, seed: int) -> Iterator[_Pair]:
    """Yield pairs with the choices behind them: blocks of one pair per class in random order, without repeated pairs."""
    rng = random.Random(f"glassloop quickstart corpus 1, seed {seed}")
    seen: set[bytes] = set()
    label = 0
    for index in range(num_examples):
        label = 1 - label if index % 2 else rng.randrange(2)
        while True:
            pair = _draw_pair(rng, label)
            digest = hashlib.blake2b(f"{pair.first}\n{pair.second}".encode(), digest_size=8).digest()
            if digest not in seen:
                break
        seen.add(digest)
        yield pair


def generate_pairs(num_examples: int, seed: int) -> Iterator[tuple[str, str, int]]:
    """Yield `num_examples` pairs (first sentence, second sentence, index into LABEL_NAMES), the same for the same seed.

    A longer stream starts with the pairs of a shorter one. No pair occurs twice, so a stream can be cut into training,
    validation and test rows. The classes are balanced in every prefix of even length.
    """
    for pair in _draw_pairs(num_examples, seed):
        yield pair.first, pair.second, pair.label
