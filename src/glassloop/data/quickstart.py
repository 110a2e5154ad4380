"""The quickstart corpus: generated news pairs that let anyone try, test and scale a training run without any download.

Each pair asks whether two sentences mean the same. A sentence is a template filled with slots; a slot has groups, a group
has values, and a value has surface forms that share no telling word with each other. The second sentence shows some
slots ("touched") in another form and all the others unchanged; in a "different" pair exactly one touched slot also takes
another value of its group. What is touched, every form, and the values of either sentence taken alone do not depend on
the label, and the values of a group are equally long in each form. So words, lengths and word overlap are alike in both
classes by construction, and only reading both sentences together tells the label.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import pairwise
from string import Formatter
from typing import NamedTuple

LABEL_NAMES = ("different", "same")

Value = tuple[str, ...]  # the surface forms of one meaning
Group = tuple[Value, ...]  # the values that can stand for each other


def _group(*rows: str) -> Group:
    """One value a row, its forms divided by a bar."""
    return tuple(tuple(form.strip() for form in row.split("|")) for row in rows)


def _swap(row: str) -> Group:
    """Two values: the row, and the row with {x} and {y} exchanged."""
    return _group(row, row.translate(str.maketrans("xy", "yx")) if False else _exchange(row))


def _exchange(row: str) -> str:
    return row.replace("{x}", "{_}").replace("{y}", "{x}").replace("{_}", "{y}")


_CITIES = {
    "Ankara": "Turkish", "Athens": "Greek", "Beijing": "Chinese", "Berlin": "German", "Brussels": "Belgian",
    "Budapest": "Hungarian", "Cairo": "Egyptian", "Copenhagen": "Danish", "Dublin": "Irish", "Havana": "Cuban",
    "Helsinki": "Finnish", "Lisbon": "Portuguese", "London": "British", "Madrid": "Spanish", "Moscow": "Russian",
    "Oslo": "Norwegian", "Ottawa": "Canadian", "Paris": "French", "Prague": "Czech", "Rome": "Italian",
    "Stockholm": "Swedish", "Tokyo": "Japanese", "Vienna": "Austrian", "Warsaw": "Polish",
}  # fmt: skip
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth"]
_NUMBERS = ["2", "two", "3", "three", "4", "four", "5", "five", "6", "six", "7", "seven", "8", "eight", "9", "nine", "10", "ten", "11", "eleven", "12", "twelve", "13", "thirteen", "14", "fourteen", "15", "fifteen", "16", "sixteen", "17", "seventeen", "18", "eighteen", "19", "nineteen", "20", "twenty", "30", "thirty", "40", "forty", "50", "fifty", "60", "sixty", "70", "seventy", "80", "eighty", "90", "ninety"]

_SLOTS: dict[str, tuple[Group, ...]] = {
    "number": (_group(*(f"{a} | {b}" for a, b in zip(_NUMBERS[::2], _NUMBERS[1::2], strict=True))),),
    "day": tuple(
        _group(*(f"{month} {i} | the {word} of {month}" for i, word in enumerate(_ORDINALS, 1))) for month in _MONTHS
    ),
    "time": (_group(*(f"{hour} p.m. | {hour + 12}:00" for hour in range(1, 12))),),
    "place": (_group(*(f"{city} | the {nation} capital" for city, nation in _CITIES.items())),),
    "share": (_group("a half | 50 percent", "a quarter | 25 percent", "a fifth | 20 percent", "a tenth | 10 percent"),),
    "term": (
        _group(*(f"{a} years | {b} months" for a, b in zip(["two", "three", "four", "five"], [24, 36, 48, 60]))),
    ),
    "move": (
        _group("rose | climbed | went up", "fell | dropped | went down"),
        _group("increased | grew", "decreased | shrank"),
    ),
    "staff": (_group("hired | took on", "fired | laid off"),),
    "vote": (
        _group("approved | voted for | did not block", "rejected | voted against | did not pass"),
        _group("backed | did not oppose", "opposed | did not back"),
    ),
    "proof": (_group("confirmed | did not contradict", "disproved | did not support"),),
    "doors": (_group("opened its doors | started work", "closed its doors | stopped work"),),
    "verdict": (
        _group("convicted {x} | found {x} guilty", "acquitted {x} | found {x} innocent"),
    ),
    "deal": (
        _swap("{x} sued {y} | {y} was sued by {x}"),
        _swap("{x} bought {y} | {y} was bought by {x}"),
        _swap("{x} sold a factory to {y} | {y} bought a factory from {x}"),
        _swap("{x} lent money to {y} | {y} borrowed money from {x}"),
        _swap("{x} earned more than {y} | {y} earned less than {x}"),
        _swap("{x} overtook {y} | {y} was overtaken by {x}"),
    ),
    "clash": (
        _swap("{x} praised {y} | {y} was praised by {x}"),
        _swap("{x} blamed {y} | {y} was blamed by {x}"),
        _swap("{x} replaced {y} | {y} was replaced by {x}"),
        _swap("{x} gave a letter to {y} | {y} got a letter from {x}"),
        _swap("{x} defeated {y} | {y} lost to {x}"),
    ),
    "match": (
        _swap("{x} beat {y} | {y} lost to {x} | {y} was beaten by {x}"),
        _swap("{x} finished ahead of {y} | {y} finished behind {x}"),
        _swap("{x} knocked out {y} | {y} was knocked out by {x}"),
    ),
    "route": (_swap("from {x} to {y} | to {y} from {x}"),),
    "order": (_swap("{x} before {y} | {y} after {x} | after {x}, {y}"),),
    "bill": tuple(_group(bill) for bill in ("tax plan", "trade treaty", "school reform", "budget", "climate law")),
    "site": tuple(_group(site) for site in ("airport", "museum", "central station", "stock exchange", "steel plant")),
    "good": tuple(_group(good) for good in ("bread", "coffee", "gas", "steel", "milk", "rice", "electricity", "gold")),
}

_NAMES: dict[str, list[str]] = {
    "cities": list(_CITIES),
    "companies": ["Brightwell", "Solmark", "Halden", "Lumora", "Tarvis", "Quorix", "Zentra", "Orbix", "Palden", "Novaro", "Amberline", "Ironbridge", "Greyfield", "Oakwell", "Rivermark", "Northgate", "Sunfield", "Copperline", "Lakestone", "Westmark", "Highmoor", "Goldcrest", "Norvane", "Keltrix"],
    "teams": ["Ashby", "Redhill", "Larkfield", "Ostley", "Millbrook", "Fairhaven", "Oakridge", "Northport", "Eastwick", "Stonebridge", "Brookside", "Kingsford", "Lakemont", "Westhaven", "Greenford", "Highfield", "Marston", "Winslow", "Thornton", "Milford", "Bradwell", "Langley", "Hartfield", "Elmwood"],
    "people": [
        " ".join(name)
        for name in pairwise(
            []
        )
    ] or [
        "Nora Hale", "Peter Brandt", "Petra Novak", "Ruben Reyes", "Edith Marsh", "Simon Keller", "Tessa Walsh",
        "Marco Costa", "Ingrid Lund", "Hugo Frost", "Leah Doyle", "Owen Pratt", "Yuki Sato", "Nils Larsen",
        "Grace Mercer", "Felix Quinn", "Vera Hoffman", "Boris Ivanov", "Lucia Moreno", "Joan Ferris", "Victor Holt",
        "Emma Winters", "Karl Bauer", "Greta Fischer", "Dario Rossi", "Rita Silva", "Marta Kowalski", "Alan Stone",
    ],
    "events": [
        "the strike ended", "the talks began", "the bridge closed", "the mayor resigned", "the lights went out",
        "the market opened", "the rain stopped", "the police arrived", "the minister spoke", "the crowd left",
        "the results came out", "the trains stopped", "the fire spread", "the schools closed", "the cameras arrived",
    ],
}  # fmt: skip

_TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("companies", ("{deal} in {place} on {day}.", "on {day}, {deal} in {place}.")),
    ("companies", ("shares in {x} {move} by {share} on {day}.", "on {day}, shares in {x} {move} by {share}.")),
    ("companies", ("the price of {good} in {place} {move} by {share} on {day}.",
                   "on {day}, the price of {good} in {place} {move} by {share}.")),
    ("companies", ("{x} {staff} {number} workers in {place}.", "in {place}, {x} {staff} {number} workers.")),
    ("people", ("lawmakers in {place} {vote} the {bill} at {time}.", "at {time}, lawmakers in {place} {vote} the {bill}.")),
    ("people", ("{clash} in {place} at {time}.", "at {time}, {clash} in {place}.")),
    ("teams", ("{match} in {place} on {day}.", "on {day}, {match} in {place}.")),
    ("teams", ("a storm hit {place} at {time} and damaged {number} homes.",
               "at {time}, a storm hit {place} and damaged {number} homes.")),
    ("teams", ("temperatures in {place} {move} by {number} degrees on {day}.",
               "on {day}, temperatures in {place} {move} by {number} degrees.")),
    ("people", ("a court in {place} {verdict} on {day}.", "on {day}, a court in {place} {verdict}.")),
    ("people", ("a judge in {place} sent {x} to prison for {term} on {day}.",
                "on {day}, a judge in {place} sent {x} to prison for {term}.")),
    ("events", ("officials in {place} said that {order}.", "{order}, officials in {place} said.")),
    ("cities", ("a crew of {number} flew {route} at {time}.", "at {time}, a crew of {number} flew {route}.")),
    ("people", ("tests in {place} {proof} the theory of {x} on {day}.",
                "on {day}, tests in {place} {proof} the theory of {x}.")),
    ("people", ("the {site} in {place} {doors} at {time}.", "at {time}, the {site} in {place} {doors}.")),
)  # fmt: skip


class Pair(NamedTuple):
    first: str
    second: str
    label: int
    touched: tuple[str, ...]
    changed: str


def _slots_of(layout: str) -> tuple[str, ...]:
    return tuple(field for _, field, _, _ in Formatter().parse(layout) if field and field not in "xy")


_PARSED = tuple((layouts, _slots_of(layouts[0]), _NAMES[names]) for names, layouts in _TEMPLATES)
KWEIGHTS = (1, 2)


def draw_pair(rng: random.Random, label: int) -> Pair:
    layouts, slots, names = rng.choice(_PARSED)
    x, y = rng.sample(names, 2)
    groups = {slot: rng.choice(_SLOTS[slot]) for slot in slots}
    can = [s for s in slots if len(groups[s][0]) > 1]
    touched = rng.sample(can, min(rng.choice(KWEIGHTS), len(can)))
    changed = rng.choice(touched)
    first: dict[str, str] = {"x": x, "y": y}
    second = dict(first)
    for slot, group in groups.items():
        v = w = rng.randrange(len(group))
        f = g = rng.randrange(len(group[0]))
        if slot in touched:
            g = (f + rng.randrange(1, len(group[0]))) % len(group[0])
        if slot == changed and not label:
            w = (v + rng.randrange(1, len(group))) % len(group)
        first[slot] = group[v][f].format(x=x, y=y)
        second[slot] = group[w][g].format(x=x, y=y)
    a = rng.choice(layouts).format_map(first)
    b = rng.choice(layouts).format_map(second)
    return Pair(a[0].upper() + a[1:], b[0].upper() + b[1:], label, tuple(touched), "" if label else changed)


def draw_pairs(num_examples: int, seed: int) -> Iterator[Pair]:
    rng = random.Random(f"glassloop quickstart {seed}")
    seen: set[bytes] = set()
    label = 0
    for index in range(num_examples):
        label = 1 - label if index % 2 else rng.randrange(2)
        while True:
            pair = draw_pair(rng, label)
            digest = hashlib.blake2b(f"{pair.first}\n{pair.second}".encode(), digest_size=8).digest()
            if digest not in seen:
                break
        seen.add(digest)
        yield pair


def generate_pairs(num_examples: int, seed: int) -> Iterator[tuple[str, str, int]]:
    for pair in draw_pairs(num_examples, seed):
        yield pair[:3]
