"""Write a scheduling pass of your own, and see what it changes, without a model.

    .venv/bin/python examples/custom_scheduling_pass.py

A step is filled by passes (`sluice.scheduler.passes`). The pass below admits the shortest waiting prompt first. It runs
in a real engine over `ShadowRunner`, a public fake whose answers have a known oracle, while `Lawful` checks every law
of the scheduler after each call.
"""

from __future__ import annotations

from sluice.engine.engine import Engine
from sluice.kv.manager import KVManager
from sluice.scheduler.admission import admit as admit_request
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.passes import Pass, admit, decode, partial
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.state import SchedulerState
from sluice.testing import ManualLink, ShadowRunner, oracle, resolved
from sluice.testing.laws import Lawful
from sluice.types import SchedulerLimits, Submit

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=16, max_batch_tokens=32, max_running_requests=4)
PROMPTS = [(1,) * 60, (2,) * 50, (3,) * 4]
VOCAB_SIZE = 100


def shortest_first(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Admit waiting requests by the length of their prompts, until one is cut or refused."""
    waiting = state.waiting.candidates(state.kv) if state.waiting else []
    for request in sorted(waiting, key=lambda request: len(request.tokens)):
        if adder.is_full() or state.partial or admit_request(adder, request) is not AddResult.CONTINUE:
            break


def steps_to_first_token(*passes: Pass) -> list[int]:
    """Run the prompts through an engine that fills its steps by these passes, and return each one's step count."""
    scheduler = Scheduler(LIMITS, KVManager(num_pages=64, page_size=4), groups=(passes,))
    link = ManualLink()
    engine = Engine(Lawful(scheduler), ShadowRunner(page_size=4, vocab_size=VOCAB_SIZE), link)
    sampling = resolved(max_tokens=4)
    link.put(*(Submit(number, prompt, sampling) for number, prompt in enumerate(PROMPTS)))
    first: dict[int, int] = {}
    step = 0
    while not engine.is_idle or not step:
        engine.step()
        step += 1
        for number in range(len(PROMPTS)):
            if link.tokens(number):
                first.setdefault(number, step)
    for number, prompt in enumerate(PROMPTS):
        assert link.tokens(number) == oracle(prompt, sampling, vocab_size=VOCAB_SIZE), "a pass must not change answers"
    return [first[number] for number in range(len(PROMPTS))]


def main() -> None:
    lengths = ", ".join(str(len(prompt)) for prompt in PROMPTS)
    print(f"prompts of {lengths} tokens, steps until the first token of each")
    print("  in order of arrival:", steps_to_first_token(decode, partial, admit))
    print("  shortest first:     ", steps_to_first_token(decode, partial, shortest_first))


if __name__ == "__main__":
    main()
