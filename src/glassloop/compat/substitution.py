"""Serve names that today's libraries lack to the user's code only, with import hooks, and note each. No library is edited."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType

from glassloop.base.errors import counted
from glassloop.base.files import near_name
from glassloop.base.output import say
from glassloop.compat.names import OLD_NAMES, OLD_PACKAGES, THEIR_TRAINER, OldName, module_today

INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = ("<", *{sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib")}, str(Path(__file__).parents[1]))


@dataclass(frozen=True)
class Substitution:
    """One name that was not served by the library that the script names, with the place that asked for it first."""

    name: str
    by: str
    reason: str
    place: str

    def __str__(self) -> str:
        return f"{self.name} -> {self.by} ({self.place}): {self.reason}"


class Ledger:
    """Collects what was substituted. There is one per process, because a process has one set of imported modules."""

    serves_old_names = False  # to a script that may be of any age

    def __init__(self) -> None:
        self.substitutions: dict[str, Substitution] = {}  # by name, in the order of their first use
        self.skipped: list[tuple[str, str]] = []  # what was not run: the place and the text of each line

    def note(self, name: str, by: str, reason: str, frame: FrameType | None = None) -> None:
        """Record a substitution. Only the first use of a name counts."""
        if name not in self.substitutions:
            self.substitutions[name] = Substitution(name, by, reason, place_of(frame or script_frame()))

    def rename(self, call: str, named: dict[str, object], names: Mapping[str, str | None], reason: str) -> None:
        """Give former arguments of a call their present `names`, in place; those without one are dropped. Each is recorded."""
        for old, today in names.items():
            if old in named:
                value = named.pop(old)
                self.note(f"{call}({old}=)", f"{today}=" if today else "nothing", reason)
                if today and value is not None:
                    named.setdefault(today, value)

    def show(self) -> None:
        """Print everything that was substituted and skipped on standard error. Of several processes, only the main one does."""
        if os.environ.get("RANK", "0") != "0":
            return
        if self.skipped:
            say(f"skipped {counted(len(self.skipped), 'line', 'lines')} that only a notebook understands:")
            for place, text in self.skipped:
                say(f"  {place}: {text}")
        number = counted(len(self.substitutions), "substitution", "substitutions")
        say(f"{number}, in this process only:" if self.substitutions else "nothing was substituted")
        for one in self.substitutions.values():
            say(f"  {one}")


LEDGER = Ledger()


def is_script(filename: str) -> bool:
    """Return whether a file is the user's code: neither Python's own, nor an installed library, nor Glassloop."""
    return not filename.startswith(LIBRARIES) and not any(name in filename for name in INSTALLED)


def script_frame() -> FrameType | None:
    """Return the innermost frame of the user's code, or None if a library was called by no script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    return "unknown place" if frame is None else f"{near_name(frame.f_code.co_filename)}:{frame.f_lineno}"


IMPORTLIB = str(importlib.__file__)
SERVED = "__glassloop_served__"
REPLACES_ITSELF = "transformers.processing_utils"  # its import puts a new module in place of transformers
Change = Callable[[ModuleType], None]
Names = Mapping[str, Mapping[str, OldName]]


class Finder(MetaPathFinder):
    """Finds modules that were moved, serves old names on others, and changes some once they are imported."""

    def __init__(self, names: Names, changes: Mapping[str, Change]) -> None:
        self.names, self.changes = names, changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        by_script = is_imported_by_script()
        today = module_today(fullname) if by_script else None
        is_package = by_script and fullname in OLD_PACKAGES
        is_changed = fullname in self.changes or fullname in self.names or fullname == REPLACES_ITSELF
        if not is_changed and today is None and not is_package:
            return None

        def change(module: ModuleType) -> None:
            self.change(sys.modules.get(fullname, module), fullname)

        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Changed(spec.loader, change)
            return spec
        if not is_package and not today:
            return None
        act = change if is_package else partial(replace_module, fullname, str(today))
        return ModuleSpec(fullname, Changed(None, act), is_package=True)

    def change(self, module: ModuleType, name: str) -> None:
        if name in self.names:
            serve(module, name, self.names[name])
        if name in self.changes:
            self.changes[name](module)
        if name == REPLACES_ITSELF:
            self.change(sys.modules["transformers"], "transformers")


def is_imported_by_script() -> bool:
    """Return whether the user's code asks for the module that is being looked for, not a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((__file__, "<frozen importlib", IMPORTLIB)):
        frame = frame.f_back
    return frame is not None and is_script(frame.f_code.co_filename)


class Changed(Loader):
    """Loads a module as its own loader does, if it has one, and changes or replaces it then."""

    def __init__(self, loader: Loader | None, act: Change) -> None:
        self.loader, self.act = loader, act

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)  # data files and sources are asked of a module's own loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self.loader is None else self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.loader is not None:
            self.loader.exec_module(module)
        self.act(module)


def replace_module(name: str, today: str, module: ModuleType) -> None:
    """Put the module of today in the place of one under a name that it no longer has."""
    try:
        sys.modules[name] = import_module(today)
    except ModuleNotFoundError as error:
        if error.name != today:
            raise
        raise ModuleNotFoundError(f"No module named {name!r}", name=name) from None
    LEDGER.note(name, today, "the module was removed or moved")


def serve(module: ModuleType, module_name: str, names: Mapping[str, OldName]) -> None:
    """Give a module a class of its own, which looks up old names for the user's code."""
    kind = type(module)
    if SERVED in vars(kind):
        return
    replaced = {name: one for name, one in names.items() if one.always}
    missing = {name: one for name, one in names.items() if not one.always}

    def served(name: str, one: OldName, frame: FrameType) -> object:
        place, _, attribute = one.now.partition(":")
        value = getattr(import_module(place), attribute)
        if not one.by_call:
            LEDGER.note(f"{module_name}.{name}", str(one), one.reason, frame)
        return value

    def get_missing(self: ModuleType, name: str) -> object:
        try:
            return kind.__getattr__(self, name)
        except AttributeError as error:
            frame = sys._getframe(1)
            if name in missing and is_script(frame.f_code.co_filename):
                return served(name, missing[name], frame)
            if not hasattr(kind, "__getattr__"):
                raise AttributeError(f"module {module_name!r} has no attribute {name!r}", name=name, obj=self) from None
            raise error from None

    def get(self: ModuleType, name: str) -> object:
        if name in replaced and is_script((frame := sys._getframe(1)).f_code.co_filename):
            return served(name, replaced[name], frame)
        value = kind.__getattribute__(self, name)
        if name == "__all__" and is_script((frame := sys._getframe(1)).f_code.co_filename):
            return [*names_of(frame.f_code) & {*value, *names}]  # `import *` would import every model
        return value

    methods: dict[str, object] = {"__getattr__": get_missing, SERVED: True}
    if replaced:
        methods["__getattribute__"] = get
    module.__class__ = type(kind.__name__, (kind,), methods)


def names_of(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(names_of, inner))


def chosen_names(keep: Iterable[str] = (), why_theirs: str | None = None) -> Names:
    """Return what stands for old names, but for those to `keep`. `why_theirs`: why the Trainer stays that of transformers."""
    kept = {*keep}
    theirs = why_theirs or ("--keep asks for it" if kept & {*THEIR_TRAINER} else None)
    chosen: dict[str, dict[str, OldName]] = {}
    for module, names in OLD_NAMES.items():
        chosen[module] = {name: one for name, one in names.items() if name not in kept}
        if theirs:
            chosen[module] |= {name: replace(one, reason=theirs) for name, one in THEIR_TRAINER.items() if name in names}
    return chosen


def install(names: Names, changes: Mapping[str, Change]) -> Finder:
    """Serve old names in this process from now on. Modules that are already imported are changed at once."""
    LEDGER.serves_old_names = True
    finder = Finder(names, changes)
    sys.meta_path.insert(0, finder)
    for name in {*names, *changes} & {*sys.modules}:
        finder.change(sys.modules[name], name)
    return finder
