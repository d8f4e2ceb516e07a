"""The table of verdicts: claims, what was found, what that rests on, and the word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence import (
    KINDS,
    NOT_HIGHER,
    SIDES,
    UNTOLD,
    Evidence,
    holm,
    seeds_needed,
    together,
    word,
)
from quantities import Records

from dps_tf.analysis.law import MARGIN
from dps_tf.analysis.wording import p_text


def verdicts(path: Path, records: Records) -> list[Sequence[str]]:
    """Returns claim, finding, what it rests on, trials, verdict and command of each.

    Raises:
        ValueError: what a verdict's words rely on does not hold, or a row without
            comparisons has a word that is no verdict.
    """
    rows = _tables_of(path)
    asked = {c["of"]: None for row in rows for c in row.get("comparisons", ())}
    found = {expression: records.evidence(expression) for expression in asked}
    of_table, of_claim = holm(found), {}
    for claim in _claims(rows):
        p = holm({each: found[each] for each in claim})
        of_claim |= {each: (p[each], len(claim)) for each in claim}
    return [_verdict(row, records, found, of_claim, of_table) for row in rows]


def _claims(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns the comparisons of each claim: a row and those that go on with "..."."""
    claims: list[list[str]] = []
    for row in rows:
        if not row["claim"].startswith("..."):
            claims.append([])
        claims[-1] += [each["of"] for each in row.get("comparisons", ())]
    return claims


def _verdict(
    row: dict[str, Any],
    records: Records,
    found: Mapping[str, Evidence],
    of_claim: Mapping[str, tuple[float, int]],
    of_table: Mapping[str, float],
) -> Sequence[str]:
    for condition in row.get("holds", ()):
        if not records.holds(condition):
            raise ValueError(f"{row['claim']!r}: {condition} does not hold")
    if "comparisons" not in row and "tables" not in row:
        raise ValueError(f"{row['claim']!r}: name the tables that it rests on")
    if "comparisons" not in row and not row["word"].startswith(KINDS):
        raise ValueError(f"{row['claim']!r}: {row['word']!r} is none of {KINDS}")
    comparisons = row.get("comparisons", ())
    words, lines, studies = {}, [], list(row.get("tables", ()))
    for each in comparisons:
        evidence, (p, number) = found[each["of"]], of_claim[each["of"]]
        margin = each.get("margin", MARGIN)
        words[each["name"]] = word(evidence, p, each["claim"], margin)
        shown = [f"{each['name']}: {evidence}"]
        if not evidence.refused:
            shown += [f"p {p_text(p)} (table {p_text(of_table[each['of']])})"]
        reach = "" if each["claim"] in SIDES else f" {evidence.reach(margin)}"
        reach = f" than {margin:g}" if each["claim"] == NOT_HIGHER else reach
        shown.append(f"claimed {each['claim']}{reach}")
        if words[each["name"]].startswith(UNTOLD) and each["claim"] in SIDES:
            seeds = min(map(records.seed_count, evidence.studies))
            shown.append(seeds_needed(evidence, seeds, number, each["claim"]))
        lines.append(", ".join(filter(None, shown)))
        studies += evidence.studies
    unlike = dict.fromkeys(found[each["of"]].searches for each in comparisons)
    unlike.pop("", None)
    lines += [f"unlike searches: {', '.join(unlike)}"] if unlike else []
    lines += [row["rests_on"].strip()] if "rests_on" in row else []
    lines += [records.seeds(*studies)]
    lines += [records.not_kept(*studies)] if records.not_kept(*studies) else []
    texts = {name: row.get(name, "") for name in ("claim", "found", "scope")}
    texts["trials"] = row.get("trials", records.trials(*studies))
    texts["rests_on"] = "; ".join(lines)
    shown = {n: records.text(" ".join(str(t).split())) for n, t in texts.items()}
    verdict = together(words) if words else row["word"]
    command = (
        f"`python -m dps_tf.train --gin_file={row['study']} --sweep_dir=D --data_dir=P`"
    )
    ends = (f"{verdict}, {shown['scope']}" if shown["scope"] else verdict, command)
    return (*(shown[name] for name in ("claim", "found", "rests_on", "trials")), *ends)


def _tables_of(path: Path) -> list[dict[str, Any]]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    with path.open("rb") as file:
        return tomllib.load(file)["verdict"]
