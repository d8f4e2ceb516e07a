"""Groups of trials that one program advances together, each trial in a lane of its own.

A turn costs all lanes of the program, whether trials are in them or not. So trials go
on in as few groups as their lanes allow, and free lanes take whatever may be of use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

Group = tuple[int, ...]
"""Trials at one step, each in its own lane, in the order of the lanes."""


def lane_of(trial: int, lanes: int) -> int:
    """Returns the lane of a trial: its number modulo `lanes`, whatever else runs.

    >>> [lane_of(trial, 3) for trial in range(4)]
    [0, 1, 2, 0]
    """
    return trial % lanes


def most_groups(trials: Iterable[int], lanes: int) -> int:
    """Returns how many groups some trials make at least, and are worth running at once.

    More groups side by side would end no earlier: every group costs all lanes.

    >>> most_groups([0, 1, 3, 6], lanes=3)
    3
    """
    taken = Counter(lane_of(trial, lanes) for trial in trials)
    return max(taken.values(), default=0)


def gathered(
    pending: Sequence[int],
    speculative: Sequence[int],
    reserve: Sequence[int],
    steps: Mapping[int, int],
    lanes: int,
) -> list[Group]:
    """Returns the groups that may begin a turn, the most urgent first.

    Pending trials come first, the furthest behind before others, in as few groups as
    possible. Free lanes take speculative trials at the same step, then reserves.
    Speculative trials without a lane make groups of their own, after all others.

    Args:
        pending: trials that have to go on.
        speculative: trials that are likely to be needed.
        reserve: trials that go on only where they cost nothing.
        steps: step that each of these trials has reached; 0 for a trial left out.
        lanes: number of lanes of the program.

    >>> gathered([0, 1, 3], [4], [5, 8], {0: 10, 3: 10}, lanes=3)
    [(1, 5), (0,), (3,), (4, 8)]
    """
    groups: list[Group] = []
    used: set[int] = set()
    tiers = ((pending, (*speculative, *reserve)), (speculative, reserve))
    for trials, fillers in tiers:
        left = _by_step((trial for trial in trials if trial not in used), steps)
        free = _by_step((trial for trial in fillers if trial not in used), steps)
        for step in sorted(left):
            for group in _fewest(left[step], lanes):
                for trial in free[step] if len(group) < lanes else ():
                    lane = lane_of(trial, lanes)
                    if trial not in used and lane not in group:
                        group[lane] = trial
                        used.add(trial)
                groups.append(tuple(group[lane] for lane in sorted(group)))
    return groups


def _by_step(
    trials: Iterable[int], steps: Mapping[int, int]
) -> defaultdict[int, list[int]]:
    of_step: defaultdict[int, list[int]] = defaultdict(list)
    for trial in trials:
        of_step[steps.get(trial, 0)].append(trial)
    return of_step


def _fewest(trials: Sequence[int], lanes: int) -> list[dict[int, int]]:
    """Returns groups of all trials, as few as possible, the fullest first, by lane.

    Neighbours stay together, so that the states of a group are in one place: only the
    trials of groups that are not needed any more move to others.
    """
    rows: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for trial in trials:
        rows[trial // lanes][lane_of(trial, lanes)] = trial
    fullest = sorted(rows.values(), key=len, reverse=True)
    count = most_groups(trials, lanes)
    kept = fullest[:count]
    for row in fullest[count:]:
        for lane, trial in row.items():
            next(group for group in kept if lane not in group)[lane] = trial
    return kept
