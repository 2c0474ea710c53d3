"""Laws of the scheduler: what must hold at every moment. `Lawful` wraps a scheduler and checks them after every call.

Each law has a number, which an error names:

    1   slots and pages: each is free, or has one owner
    2   references to cached pages are counted
    3   the prefix tree holds exactly its pages
    4   the counters of a request are in order
    5   a request has the pages for its promised tokens
    6   a request is in exactly one collection, the one of its status
    7   a plan keeps its budgets
    8   the chunks of a plan are well formed, and each begins where the one before it ended
    9   no two rows write to the same place, and none to a shared page
    10  nothing that a step in flight uses is free or has another owner
    11  every request ends once, and no output is skipped or repeated
    12  every request makes progress, within bounds
    13  all modes give the same tokens (tests/laws/test_modes_agree.py)
    14  equal calls give equal plans (tests/laws/test_modes_agree.py)
    15  without requests nothing is held
    16  no offloaded work is planned before its blocks were reported as loaded
    17  no budget is unused while a prompt that has begun lacks tokens
    18  in a pipeline decodes take turns
    19  drafts follow known tokens, and do not reach beyond the end of a request
    20  pages of a very long context are found and given back over several steps
    24  a chunk begins where the recurrent state of its slot is known, and a slot's state with the record of its prefix
    25  the record of a recurrent state that a node has was made behind exactly the node's tokens
    22  a request that waits for its turn, or runs, has its adapter loaded; places for adapters are counted
    23  what the queries of a chunk see in layers with a window, its request holds
    26  pages of windows: each is free, or has one owner, and windows that hold one are counted
    27  a request holds no more pages of windows than are reserved for it
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
from sluice.testing.laws.windows import window_pages_are_conserved, windows_are_bounded

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
    "window_pages_are_conserved",
    "windows_are_bounded",
    "writes_are_private",
)
