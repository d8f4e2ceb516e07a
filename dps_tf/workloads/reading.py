"""From gin files and bindings to a sweep, with one sentence for every mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import gin
from absl import logging

from dps_tf.core.errors import UserError
from dps_tf.core.sweep import SweepSpecification
from dps_tf.workloads import configuration
from dps_tf.workloads import gin_files as configurations


def read_configuration(
    gin_files: Sequence[str], bindings: Sequence[str]
) -> tuple[SweepSpecification, str]:
    """Returns (the sweep, the resolved configuration as gin text).

    Side effect: gin's configuration is that of these files and bindings alone.

    Raises:
        UserError: whatever is wrong in them.
    """
    if not gin_files and not bindings:
        raise UserError(
            "no configuration was given: name one with --gin_file, for example "
            f"{', '.join(configurations.shipped()[:3])}."
        )
    paths = [str(configurations.resolve(name)) for name in gin_files]
    gin.clear_config()
    gin.add_config_file_search_path(str(configurations.folder()))
    try:
        with _quiet():
            gin.parse_config_files_and_bindings(paths, list(bindings))
        sweep = gin.get_configurable(configuration.sweep)()
    except UserError as error:
        # Gin adds where it was when the value was refused: the sentence names it.
        raise UserError(str(error).split("\n")[0]) from error
    except (ValueError, TypeError, KeyError, OSError, RuntimeError, SyntaxError) as e:
        raise UserError(f"the configuration cannot be read: {_one_line(e)}") from e
    return sweep, gin.operative_config_str()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Gin logs an error for each place in which it looks for an included file."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line)[:600]


def describe(sweep: SweepSpecification, gin_text: str) -> str:
    """Returns what a sweep would run, and what it may cost at most."""
    lines = [gin_text.strip(), "", f"cells: {len(sweep.studies)}"]
    for study in sweep.studies:
        rule = study.rule
        lines.append(
            f"  {study.cell.name}: {rule.draws_limit} trials at most, "
            f"{rule.last_evaluation} steps each at most, evaluated every "
            f"{rule.schedule.interval} steps, goal {study.goal}"
        )
    lines += [
        f"trials: {sweep.max_trials}",
        f"steps at most: {sweep.max_steps}",
        f"training examples at most: {sweep.max_examples}",
        "A race stops far below these bounds; they hold if nobody reaches the goal.",
    ]
    return "\n".join(lines)
