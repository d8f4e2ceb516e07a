"""One's own studies in the layout of the public archive of Shallue et al. 2019.

What the layout cannot hold, and what becomes of it:
    status      COMPLETE also for trials that were stopped at the goal, because readers
                of the archive take K* from COMPLETE trials only; `early_stopping` is
                then true. Out-run and failed trials are INCOMPLETE.
    bounds      evaluations that stopped early: their validation cells are empty.
    metrics     those that the archive has; the mini-batch loss is not among them.
    cells       sparse cells, other precisions than float32 and further seeds get a
                folder of their own in front of the dataset, and fields in study.json.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.shallue2019 import METRICS, OPTIMIZERS, SCALES
from dps_tf.analysis.tables import (
    cell_codes,
    metaparameter_names,
    metric_names,
    study_goal,
    trial_codes,
)
from dps_tf.core import CELL_KEY, FLOAT32, UserError, axis_part, checked_name, is_axis
from dps_tf.store import LocalFiles

_OUR_METRICS = {ours: theirs for theirs, ours in METRICS.items()}
_OUR_OPTIMIZERS = {ours: theirs for theirs, ours in OPTIMIZERS.items()}
_OUR_SCALES = {ours: theirs for theirs, ours in SCALES.items()}
_STATUSES = {
    "complete": "COMPLETE",
    "incomplete": "COMPLETE",
    "infeasible": "INFEASIBLE",
}


def write_archive(  # noqa: PLR0913 - tables, and where to
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    root: str | Path,
    names: Mapping[str, tuple[str, str]] | None = None,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Writes studies below a folder and returns their folders.

    A study's own file, by which readers find it, is written when all its trials are on
    the disk: after a kill or a full disk an archive holds whole studies only, and the
    same call goes on. What is there already with the same content is left alone.

    Args:
        studies: one row per cell.
        trials: one row per trial.
        curves: one row per evaluation.
        root: folder to write to; it need not exist.
        names: dataset and model of each workload; by default the parts of its name
            before and after the last '-', and 'network' where it has none.
        progress: called with one line per study.

    Raises:
        UserError: another study is there already, or a name cannot be part of a path.
        StoreError: the file system refused.
    """
    cells = cell_codes(trials, studies)
    measured = _measurements(curves, trials)
    written = []
    for cell in range(len(studies)):
        study = studies.iloc[cell]
        rows = np.flatnonzero(cells == cell)
        dataset, model = _names(str(study["workload"]), names)
        folder = _folder(Path(root), study, dataset, model)
        contents: dict[str, bytes] = {}
        for row in rows.tolist():
            place = f"{trials['trial'].iloc[row]}"
            metadata = _trial(study, trials.iloc[row])
            contents[f"{place}/metadata.json"] = _json_bytes(metadata)
            text = measured[row].to_csv(index=False)
            contents[f"{place}/measurements.csv"] = text.encode()
        fields = _study(study, trials.iloc[rows], dataset, model)
        _write_study(folder, contents, _json_bytes(fields))
        written.append(folder)
        progress(f"{cell + 1} of {len(studies)}: {folder}: {len(rows):,} trials")
    return written


def _measurements(curves: pd.DataFrame, trials: pd.DataFrame) -> list[pd.DataFrame]:
    """Returns the curve of each trial as the archive writes it."""
    codes = trial_codes(curves, trials)
    order = np.lexsort((curves["step"].to_numpy(np.int64), codes))
    ordered = curves.iloc[order]
    bound = ordered["is_bound"].to_numpy(bool)
    columns = {"step": ordered["step"].to_numpy(np.int64)}
    for name in metric_names(curves):
        theirs = _OUR_METRICS.get(name)
        if theirs is not None:
            values = ordered[name].to_numpy(np.float64)
            hidden = bound & name.startswith("validation/")
            columns[theirs] = np.where(hidden, np.nan, values)
    table = pd.DataFrame(columns)
    edges = np.searchsorted(codes[order], np.arange(len(trials) + 1))
    return [table.iloc[start:end] for start, end in itertools.pairwise(edges)]


def _names(
    workload: str, names: Mapping[str, tuple[str, str]] | None
) -> tuple[str, str]:
    if names is not None and workload in names:
        return names[workload]
    dataset, dash, model = workload.rpartition("-")
    return (dataset, model) if dash else (workload, "network")


def _folder(root: Path, study: pd.Series, dataset: str, model: str) -> Path:
    extra = []
    if study["sparsity"] > 0:
        extra.append(f"{study['sparsity_method']}_{float(study['sparsity'])!r}")
    if study["precision"] != FLOAT32:
        extra.append(str(study["precision"]))
    if study["seed"] != 0:
        extra.append(f"seed_{study['seed']}")
    extra += [axis_part(name, text) for name, text in _axes(study).items()]
    optimizer = _optimizer(study)
    parts = [*extra, *dataset.split("/"), model, optimizer]
    checked = [checked_name("part of the archive's path", part) for part in parts]
    return root.joinpath(*checked, str(study["batch_size"]))


def _study(
    study: pd.Series, trials: pd.DataFrame, dataset: str, model: str
) -> dict[str, Any]:
    reached = (trials["outcome"] == "complete").to_numpy(bool)
    stopped = trials["end_step"].to_numpy(np.int64) < int(study["step_budget"])
    cut = (trials["outcome"] == "censored").to_numpy(bool)
    space = json.loads(str(study["space"]))
    return {
        "batch_size": int(study["batch_size"]),
        "dataset": dataset,
        "model": model,
        "optimizer": _optimizer(study),
        "early_stopping": bool(((reached & stopped) | cut).any()),
        "parameter_configs": {name: _parameter(*e) for name, e in space.items()},
        "train_steps": int(study["step_budget"]),
        "workload": str(study["workload"]),
        "sparsity_method": str(study["sparsity_method"]),
        "sparsity": float(study["sparsity"]),
        "seed": int(study["seed"]),
        "precision": str(study["precision"]),
        "prunable": str(study["prunable"]),
        "goal": study_goal(study).to_json(),
        **_axes(study),
    }


def _optimizer(study: pd.Series) -> str:
    return _OUR_OPTIMIZERS.get(study["optimizer"], str(study["optimizer"]))


def _axes(study: pd.Series) -> dict[str, str]:
    """Returns the further axes that the cell of a row has."""
    return {n: str(study[n]) for n in study.index if is_axis(n) and study[n] != ""}


def _parameter(scale: str, *ends: Any) -> dict[str, Any]:
    if scale == "discrete":
        return {"type": "DISCRETE", "feasible_points": ends[0]}
    low, high = ends
    if scale == "integer":
        found = {"type": "INTEGER", "min_value": int(low), "max_value": int(high)}
        return {**found, "scale": ""}
    found = {"type": "DOUBLE", "min_value": low, "max_value": high}
    return {**found, "scale": _OUR_SCALES[scale]}


def _trial(study: pd.Series, trial: pd.Series) -> dict[str, Any]:
    names = metaparameter_names(trial.to_frame().T)
    space = json.loads(str(study["space"]))
    whole = {name for name, entry in space.items() if entry[0] == "integer"}
    values = {name: float(trial[name]) for name in names if pd.notna(trial[name])}
    return {
        "trial_id": int(trial["trial"]),
        "parameters": {n: int(x) if n in whole else x for n, x in values.items()},
        "steps": int(trial["end_step"]),
        "status": _STATUSES.get(str(trial["outcome"]), "INCOMPLETE"),
        "_internal_study_name": _study_name(study),
        "_internal_trial_id": int(trial["trial"]),
    }


def _study_name(study: pd.Series) -> str:
    values = [study[name] for name in (*CELL_KEY, "precision")]
    return "-".join(map(str, [*values, *_axes(study).values()]))


def _json_bytes(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _write_study(folder: Path, contents: Mapping[str, bytes], study: bytes) -> None:
    """Writes the files of a study, its own last; or finds that all are there."""
    files, path = LocalFiles(), folder / "study.json"
    everything = {str(folder / name): data for name, data in contents.items()}
    trials = {name.partition("/")[0] for name in contents}
    others = [n for n in files.list_names(str(folder)) if n not in trials]
    if path.exists():
        wanted = {**everything, str(path): study}
        if others == [path.name] and all(map(_holds, wanted, wanted.values())):
            return
        raise UserError(
            f"{str(folder)!r} holds another study already: write elsewhere."
        )
    if others:
        raise UserError(f"{str(folder)!r} holds {others[0]}: write elsewhere.")
    for trial in trials:
        files.remove_stale(str(folder / trial))
    files.write_many(everything)
    files.write_atomic(str(path), study)


def _holds(path: str, data: bytes) -> bool:
    return Path(path).is_file() and Path(path).read_bytes() == data
