"""The flags that several commands have, and the text of `--help`.

A command calls the functions below where it defines its own flags. `section` opens a
heading of its `--help`, which lists flags in the order of their definitions, so that
the usual ones come first.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from dps_tf.core import UserError, printable

# Flags that are defined here belong to the command that asks for them.
flags.disclaim_key_flags()

_HELP = {"--help", "-help", "--helpshort", "-helpshort", "-h", "-?", "--?"}
_VALUES = {
    "string": "TEXT",
    "int": "N",
    "float": "X",
    "multi string": "TEXT",
    "multi float": "X",
    "multi int": "N",
    "comma separated list of strings": "A,B",
}
"""How `--help` shows the value of a flag, by absl's name of its type."""
_ENUM = re.compile(r"<(\S+)>: ")
_WIDTH, _COLUMN = 88, 26
_sections: list[tuple[str, set[str]]] = []
"""Headings, each with the names of all flags that were defined before it."""


def section(title: str) -> None:
    """Opens a heading of `--help` for the flags that are defined after it."""
    _sections.append((title, set(flags.FLAGS)))


def sweep_dir() -> flags.FlagHolder[str | None]:
    """Defines the flag of the one directory in which a sweep is kept."""
    return flags.DEFINE_string("sweep_dir", None, "Where the sweep is kept.")


def sweep_dirs(purpose: str = "may be repeated") -> flags.FlagHolder[list[str]]:
    """Defines the flag of one or several directories of sweeps."""
    return flags.DEFINE_multi_string("sweep_dir", [], f"A sweep directory; {purpose}.")


def data_dir() -> flags.FlagHolder[str | None]:
    """Defines the flag of the folder that `dps_tf.prepare` has written."""
    return flags.DEFINE_string("data_dir", None, "Folder of prepared data sets.")


def imports(registers: str = "workloads") -> flags.FlagHolder[list[str]]:
    """Defines the flag of modules that register parts of the user's own."""
    text = f"A module that registers {registers} of your own; may be repeated."
    return flags.DEFINE_multi_string("import", [], text)


def require(*holders: flags.FlagHolder[Any]) -> None:
    """Raises UserError for the first flag that was not given."""
    for holder in holders:
        if holder.value in (None, "", []):
            text = _text(flags.FLAGS[holder.name])
            raise UserError(f"--{holder.name} is missing: {text[0].lower()}{text[1:]}")


def parser(
    module: str, documentation: str, done: int, failed: int
) -> Callable[[Sequence[str]], list[str]]:
    """Returns a function that parses the command line of a command.

    The function returns the arguments that are no flags. For `--help` it prints the
    help and exits with the code `done`; for a flag that is unknown or wrong it prints
    one line and exits with the code `failed`.

    Args:
        module: name with which the command's flags are registered.
        documentation: docstring of that module, with which the help begins.
        done: exit code after the help.
        failed: exit code after an error.
    """

    def parse(argv: Sequence[str]) -> list[str]:
        if _HELP & set(argv[1:]):
            print(help_text(module, documentation))
            sys.exit(done)
        try:
            return list(flags.FLAGS(list(argv)))
        except SystemExit:
            # absl takes --helpfull and --helpxml for failures.
            sys.exit(done)
        except flags.Error as error:
            text = " ".join(str(error).split())
            print(f"error: {printable(text)} (see --help)", file=sys.stderr)
            sys.exit(failed)

    return parse


def help_text(module: str, documentation: str) -> str:
    """Returns the help of a command: its documentation, then its flags by sections.

    >>> print(help_text("no_such_module", "Does nothing."))
    Does nothing.
    """
    lines = [documentation.strip()]
    title = None
    for flag in flags.FLAGS.flags_by_module_dict().get(module, []):
        above = [title for title, before in _sections if flag.name not in before]
        heading = above[-1] if above else "Flags"
        if heading != title:
            title = heading
            lines += ["", f"{title}:"]
        lines += _lines(flag)
    return "\n".join(lines)


def _lines(flag: flags.Flag[Any]) -> Iterator[str]:
    """Yields the lines of the help on one flag: its name, and beside it the text."""
    enum = _ENUM.match(flag.help or "")
    value = enum[1] if enum else _VALUES.get(flag.flag_type(), "")
    name = f"  --{flag.name}" + (f"={value}" if value else "")
    text = _text(flag)
    if flag.default or (flag.default == 0 and not flag.boolean):
        text += f" Default: {flag.default}."
    if len(name) > _COLUMN - 2:
        yield name
        name = ""
    for line in textwrap.wrap(
        text, _WIDTH - _COLUMN, break_on_hyphens=False, break_long_words=False
    ):
        yield f"{name:{_COLUMN}}{line}"
        name = ""


def _text(flag: flags.Flag[Any]) -> str:
    """Returns the help text of a flag, without the additions of absl."""
    text = _ENUM.sub("", flag.help or "", count=1)
    return text.partition(";\n")[0]
