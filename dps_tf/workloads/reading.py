"""Reads gin files and bindings as a sweep, with one sentence for every mistake.

Shipped files are named by their path below the folder `gin_configs`, without the
suffix: `lee2021/mnist_sgd`. The names are the same in the source tree and in a wheel.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib.resources
import inspect
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gin
import numpy as np
from gin import config_parser

from dps_tf.core import Goal, SweepSpecification, UserError, near_matches
from dps_tf.workloads import configuration

_GIN_NAME = re.compile(r"(\w+/)*\w+(\.\w+)+", re.ASCII)
_NO_SECTION = re.compile(r"No configurable matching '(\w+)'")
_NO_PARAMETER = re.compile(
    r"Configurable '(\w+)' doesn't have a parameter named '(\w+)'"
)
_REFERENCE = re.compile(r"[@%][\w./]+(\(\))?")
_OWNERS = {
    "workload": "sweep.workloads",
    "goal": "workload.goal",
    "evaluation": "workload.evaluation",
    "step_budget": "workload.step_budget",
    "scaling_rule": "workload.points",
    "pruning": "sweep.pruning",
}
"""The gin name of the value that refers to each section, except to the root."""
_SECTIONS = ("sweep", *_OWNERS)
_PARTS = {
    "sweep.workloads": "@workload()",
    "workload.goal": "@goal()",
    "workload.evaluation": "@evaluation()",
}
"""References between the parts of a sweep where there is no gin file."""
_TOLD = {
    "workload.network": "network=build, a function of (input_shape, classes)",
    "workload.dataset": "dataset=(inputs, labels)",
    "goal.threshold": "goal=0.05",
    "sweep.batch_sizes": "batch_sizes=(8, 32, 128)",
    "workload.step_budget": "step_budget=2000, the most steps of a trial",
}
_SHOWN = 4
"""Number of cells that `print(sweep)` names."""


@dataclass(frozen=True)
class SweepConfiguration:
    """A sweep and the configuration that it comes from.

    Attributes:
        specification: the studies of the sweep.
        gin: the resolved configuration as the text of a gin file for the same sweep.
        objects: names of networks and data sets that this program alone has.
    """

    specification: SweepSpecification
    gin: str
    objects: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Returns the size of the sweep and its first cells, in about ten lines."""
        studies = self.specification.studies
        shown = [f"  {study.cell.name}" for study in studies[:_SHOWN]]
        if len(studies) > _SHOWN:
            shown.append(f"  and {len(studies) - _SHOWN} more")
        goals = dict.fromkeys(str(study.goal) for study in studies)
        return "\n".join(
            [
                f"sweep of {len(studies)} cells, goal {'; '.join(goals)}",
                *shown,
                *_most(self.specification),
                "sweep.gin holds the whole configuration as a gin file",
            ]
        )


def configure(
    *gin_files: str,
    network: Any = None,
    dataset: Any = None,
    goal: Goal | float | None = None,
    batch_sizes: Sequence[int] | None = None,
    step_budget: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> SweepConfiguration:
    """Returns a sweep from gin files, Python objects and values, or all of them.

    A value replaces the value in the files. Without files, `sweep.workloads`,
    `workload.goal` and `workload.evaluation` are the sections of these names; a text
    that begins with `@` or `%` is a reference, as in a gin file. The command `train`
    makes the same sweep from the same files and bindings, so either can continue a
    sweep that the other began.

    Args:
        gin_files: gin files, or names of shipped ones.
        network: function of (input_shape, classes) that returns a tf_keras model whose
            outputs are logits, or a registered name. Its optimizer is `sgd` with the
            default space, and 100 points, unless `values` has others.
        dataset: arrays (inputs [n, ...], labels [n]) with classes from 0 as labels; or
            a function of (data_dir) that returns a `data.Source`; or a registered name.
            Of arrays a fifth is for validation, with 20 evaluations in an epoch.
        goal: a goal, or the largest classification error on the validation split.
        batch_sizes: batch sizes to measure.
        step_budget: most steps of a trial; a race stops far below it.
        values: values by gin name, such as `workload.points`: numbers, texts, flags,
            None, and lists and dictionaries of such.

    Raises:
        UserError: a file or value is wrong.

    Examples:
        >>> import dps_tf
        >>> tiny = dps_tf.sweep("quickstart", values={"sweep.batch_sizes": (16, 64)})
        >>> [study.cell.batch_size for study in tiny.specification.studies]
        [16, 64]

    `dps_tf.run(tiny, "sweeps/tiny")` trains it.
    """
    given, objects = dict(values or {}), tuple[str, ...]()
    asked = (network, dataset, goal, batch_sizes, step_budget)
    if any(part is not None for part in asked):
        from dps_tf.workloads.given import values_of  # imports TensorFlow, seconds

        stated, objects = values_of(*asked)
        given = {**stated, **given}
        for name in _TOLD:
            if not gin_files and name not in given:
                raise UserError(f"{name} is missing: give for example {_TOLD[name]}.")
    if not gin_files:
        parts = dict(_PARTS)
        if any(name.startswith("pruning.") for name in given):
            parts["sweep.pruning"] = "@pruning()"
        given = {**parts, **given}
    bindings = [_binding(name, value) for name, value in given.items()]
    return SweepConfiguration(*read_configuration(gin_files, bindings), objects)


def _binding(name: str, value: Any) -> str:
    """Returns a value under its gin name as a line of a gin file."""
    if not isinstance(name, str) or not _GIN_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a value: write it as in gin files, for example "
            "'workload.points'."
        )
    return f"{name} = {_literal(name, value)}"


def _literal(name: str, value: Any) -> str:
    """Returns a value as text of a gin file; UserError for other kinds of values."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype in (np.float16, np.float32):
            value = value.astype(str).astype(float)  # 0.9, and not 0.8999999762
        value = value.tolist()
    if isinstance(value, str) and value.startswith(("@", "%")):
        return value
    if isinstance(value, Mapping):
        entries = (
            f"{_literal(name, key)}: {_literal(name, entry)}"
            for key, entry in value.items()
        )
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, (list, tuple, range)):
        text = ", ".join(_literal(name, entry) for entry in value)
        return f"({text},)" if isinstance(value, tuple) and value else f"[{text}]"
    is_finite = not isinstance(value, float) or math.isfinite(value)
    is_plain = isinstance(value, (str, int, float, type(None)))
    if not is_plain or isinstance(value, enum.Enum) or not is_finite:
        raise UserError(
            f"{name} holds {value!r}; a gin file can hold finite numbers, texts, "
            "flags, None, and lists and dictionaries of such."
        )
    return repr(value)


@contextlib.contextmanager
def _gin_alone() -> Iterator[None]:
    """Empties gin, and gives back what a program has bound in it."""
    names = "_CONFIG", "_IMPORTS", "_OPERATIVE_CONFIG", "_SINGLETONS"
    held = [getattr(gin.config, name) for name in names]
    before, is_locked = [part.copy() for part in held], gin.config_is_locked()
    gin.clear_config()
    try:
        yield
    finally:
        gin.clear_config()
        for part, content in zip(held, before, strict=True):
            part.update(content)
        gin.config._set_config_is_locked(is_locked)


@_gin_alone()
def read_configuration(
    gin_files: Sequence[str], bindings: Sequence[str]
) -> tuple[SweepSpecification, str]:
    """Returns (the sweep, the resolved configuration as gin text), or raises UserError.

    What a program has bound in gin counts nowhere here.
    """
    if not gin_files and not bindings:
        raise UserError(
            "no configuration was given: name one with --gin_file, for example "
            f"{', '.join(shipped()[:3])}."
        )
    paths = [resolve(name) for name in gin_files]
    gin.add_config_file_search_path(str(folder()))
    try:
        with _quiet():
            gin.parse_config_files_and_bindings(list(map(str, paths)), [], False)
            in_files = gin.config_str()
            gin.parse_config_files_and_bindings([], list(bindings))
        given = _Written("\n".join(bindings)).lines
        own = [line for path in paths for line in _Written(path.read_text()).lines]
        for line in own + given:
            if line.section == "workload":
                configuration.check_field(line.parameter)
        sweep = gin.get_configurable(configuration.sweep)()
        resolved, operative = gin.config_str(), gin.operative_config_str()
        bound, used = _Written(resolved), _used(operative)
        _check_reach(given, bound, used)
        _check_references(given, bound.macros, used)
        # References of the files count too, although the command line may replace them.
        before = bound if resolved == in_files else _Written(in_files)
        used |= {part for s, n in before.references for part in ((s, n), ("", n))}
        _check_references(own, bound.macros | before.macros, used)
    except UserError as error:
        # Gin adds the place where the value was refused, which the sentence names.
        raise UserError(str(error).split("\n")[0]) from error
    except (ValueError, TypeError, KeyError, OSError, RuntimeError, SyntaxError) as e:
        text = _one_line(e)
        hint = _hint(text, bindings)
        raise UserError(f"the configuration cannot be read: {text}{hint}") from e
    return sweep, operative


@dataclass(frozen=True)
class _Line:
    """The name that a gin file's line binds: `scope/section.parameter`, or a macro."""

    scope: str
    section: str
    parameter: str

    def __str__(self) -> str:
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{self.section}{'.' if self.parameter else ''}{self.parameter}"


class _Written(config_parser.ParserDelegate):
    """The names that a gin text binds and refers to, without included files.

    Attributes:
        lines: what its lines bind, in their order.
        references: (scope, section) of each `@scope/section()`.
        macros: names of each `%name`.
    """

    def __init__(self, text: str):
        self.references: set[tuple[str, str]] = set()
        self.macros: set[str] = set()
        self.lines = [
            _Line(line.scope, line.selector.rpartition(".")[2], line.arg_name)
            for line in config_parser.ConfigParser(text, self)
            if isinstance(line, config_parser.BindingStatement)
        ]

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> str:
        """Takes a reference of a value, for gin's parser."""
        scope, _, name = scoped_name.rpartition("/")
        if evaluate:
            self.references.add((scope, name.rpartition(".")[2]))
        return scoped_name

    def macro(self, name: str) -> str:
        """Takes a macro of a value, for gin's parser."""
        self.macros.add(name)
        return name


def _used(operative: str) -> set[tuple[str, str]]:
    """Returns (scope, section) of each section that made a part of the sweep."""
    return {(line.scope, line.section) for line in _Written(operative).lines}


def _check_references(
    lines: Sequence[_Line], macros: set[str], used: set[tuple[str, str]]
) -> None:
    """Raises UserError if nothing refers to the section or macro of a line."""
    for line in lines:
        if not line.parameter:
            if str(line) not in macros:
                raise UserError(
                    f"{line} is bound, and nothing refers to %{line}: write "
                    "section.name, such as workload.points, or leave it out."
                )
            continue
        inside = f"{line.scope}/" if line.scope else ""
        if line.section in _SECTIONS and not any(
            section == line.section and f"{scope}/".startswith(inside)
            for scope, section in used
        ):
            reference = f"@{inside}{line.section}()"
            raise UserError(
                f"{line} is bound and counts nowhere, because nothing refers to "
                f"{reference}: bind {_OWNERS[line.section]} to {reference}, or leave "
                f"{line} out."
            )


def _check_reach(
    given: Sequence[_Line], bound: _Written, used: set[tuple[str, str]]
) -> None:
    """Raises UserError for a binding without effect, as all scopes have their own.

    A binding in a scope, `sgd/workload.points`, wins over `workload.points` there.
    """
    own, names = set(map(str, bound.lines)), set(map(str, given))
    for line in given:
        scopes = {scope for scope, section in used if section == line.section}
        each = [f"{scope}/{line}" for scope in sorted(scopes)]
        each = [name for name in each if name in own and name not in names]
        if scopes and len(each) == len(scopes):
            raise UserError(
                f"{line} is bound and counts nowhere, because the gin file binds "
                f"{', '.join(each)}: bind what you mean of these."
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Mutes gin, which logs an error for each place where an included file is not."""
    before = logging.root.manager.disable
    quiet = logging.NullHandler()
    # Without a handler, Python would install one at the first message.
    logging.root.addHandler(quiet)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        logging.root.removeHandler(quiet)


def _hint(error: str, bindings: Sequence[str]) -> str:
    """Returns a hint for a name or value that gin does not accept, or ''."""
    if match := _NO_SECTION.search(error):
        return f" ({near_matches(match[1], _SECTIONS)})"
    if (match := _NO_PARAMETER.search(error)) and match[1] in _SECTIONS:
        section = getattr(configuration, match[1])
        return f" ({near_matches(match[2], inspect.signature(section).parameters)})"
    for binding in bindings:
        value = binding.partition("=")[2].strip()
        if "\n" in value:
            continue
        try:
            ast.parse(_REFERENCE.sub("None", value), mode="eval")
        except SyntaxError:
            return f" ({binding!r} has no value that Python knows)"
    return ""


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line)[:600]


def describe(sweep: SweepSpecification, gin_text: str) -> str:
    """Returns the configuration, the cells and the largest cost of a sweep, as text."""
    lines = [gin_text.strip(), "", f"cells: {len(sweep.studies)}"]
    for study in sweep.studies:
        rule = study.rule
        lines.append(
            f"  {study.cell.name}: {rule.draws_limit} trials at most, "
            f"{rule.last_evaluation} steps each at most, evaluated every "
            f"{rule.schedule.interval} steps, goal {study.goal}"
        )
    lines += _most(sweep)
    if not any(study.rule.exhaustive for study in sweep.studies):
        lines.append(
            "A race stops far below these bounds, unless no trial reaches the goal."
        )
    return "\n".join(lines)


def _most(sweep: SweepSpecification) -> list[str]:
    """Returns lines on the cost of a sweep if no race stops before its end."""
    return [
        f"trials: {sweep.max_trials}",
        f"steps at most: {sweep.max_steps}",
        f"training examples at most: {sweep.max_examples}",
    ]


_SUFFIX = ".gin"


def folder() -> Path:
    """Returns the folder of the shipped gin files, in which `include` looks too."""
    # An installed package is always a folder: TensorFlow does not run from a zip.
    return Path(str(importlib.resources.files("dps_tf") / "gin_configs"))


def shipped() -> list[str]:
    """Returns the names of the shipped configurations, sorted."""
    root = folder()
    paths = (path.relative_to(root) for path in root.rglob(f"*{_SUFFIX}"))
    return sorted(path.with_suffix("").as_posix() for path in paths)


def resolve(name_or_path: str) -> Path:
    """Returns the absolute path of a gin file, shipped or of the user's own.

    A shipped name wins over a file of the same name in the current directory, so that a
    name means the same everywhere; `./name` is always a path. Raises UserError if there
    is neither.
    """
    names = shipped()
    if name_or_path in names:
        return folder() / f"{name_or_path}{_SUFFIX}"
    path = Path(name_or_path)
    if path.is_file():
        return path.absolute()
    if path.is_dir():
        raise UserError(
            f"gin file {name_or_path!r} is a folder; name one of the files in it"
        )
    bare = name_or_path.removesuffix(_SUFFIX)
    if bare in names:
        return folder() / f"{bare}{_SUFFIX}"
    raise UserError(
        f"gin file {name_or_path!r} is neither a file nor a shipped name; "
        f"{near_matches(bare, [n for n in names if not n.startswith('smoke/')])}"
    )
