"""Laws of the scheduler: what must hold at every moment, one function a law.

Laws are numbered. Laws 1-6 are about the state, 7-9 and 17-19 about a plan, 10-12 about a whole run,
15 about the end of one, 16 about reports of what was read. (13, all modes agree, and 14, plans are a function of the
calls, need several runs; they live in the tests.) `Lawful` wraps a scheduler and checks them after every call.
"""

from sluice.testing.laws.lawful import Lawful
from sluice.testing.laws.pages import (
    LawBroken,
    pages_are_conserved,
    pages_cover_the_promise,
    references_are_counted,
    slots_are_conserved,
    tree_is_reachable,
)
from sluice.testing.laws.plans import check_plan, steps_to_prefill, writes_are_private
from sluice.testing.laws.state import check_state, counters_are_ordered, quiet_means_empty, requests_have_one_status
from sluice.testing.laws.tiers import loads_are_apart, tiers_are_conserved
from sluice.testing.laws.unused import no_budget_is_unused
from sluice.testing.laws.view import View

__all__ = (
    "LawBroken",
    "Lawful",
    "View",
    "check_plan",
    "check_state",
    "counters_are_ordered",
    "loads_are_apart",
    "no_budget_is_unused",
    "pages_are_conserved",
    "pages_cover_the_promise",
    "quiet_means_empty",
    "references_are_counted",
    "requests_have_one_status",
    "slots_are_conserved",
    "steps_to_prefill",
    "tiers_are_conserved",
    "tree_is_reachable",
    "writes_are_private",
)
