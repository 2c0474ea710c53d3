"""Settings in which every two values of different names meet: a covering array of strength two, made greedily."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Place = tuple[str, int]
"""A name and the index of one of its values."""


def covering(
    values: Mapping[str, Sequence[Any]],
    is_accepted: Callable[[dict[str, Any]], bool] = lambda setting: True,
    most: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield settings until every two values that are accepted together have met in one of them.

    Args:
        values: name -> its values.
        is_accepted: whether a setting of some of the names may be; one that may not be is not yielded.
        most: names that a setting sets at most; None: all of them.
    """
    places = [(name, index) for name, choices in values.items() for index in range(len(choices))]
    missing = {frozenset(pair) for pair in combinations(places, 2) if pair[0][0] != pair[1][0]}
    used = Counter[Place]()

    def setting_of(chosen: Sequence[Place]) -> dict[str, Any]:
        return {name: values[name][index] for name, index in chosen}

    def gain(place: Place, chosen: Sequence[Place]) -> int:
        return sum(frozenset((place, other)) in missing for other in chosen)

    for first, second in combinations(places, 2):
        if frozenset((first, second)) not in missing or not is_accepted(setting_of([first, second])):
            continue
        chosen, left = [first, second], set(places)
        while len(chosen) < (most or len(values)):
            names = {name for name, _ in chosen}
            left = {place for place in left if place[0] not in names}
            if not left:
                break
            best = max(left, key=lambda place: (gain(place, chosen), -used[place], place))
            left.remove(best)
            if is_accepted(setting_of([*chosen, best])):
                chosen.append(best)
        used.update(chosen)
        missing -= {frozenset(pair) for pair in combinations(chosen, 2)}
        yield setting_of(chosen)
