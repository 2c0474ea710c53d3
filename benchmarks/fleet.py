"""Measure a fleet on Ray Serve (needs the extra `ray`):

    python benchmarks/fleet.py overhead --json FILE
    python benchmarks/fleet.py conversations --json FILE
    python benchmarks/fleet.py replay --rounds 3 --conversations 40 --rate 0.5 --json FILE
    python benchmarks/fleet.py scaling --json FILE --svg FILE
    python benchmarks/fleet.py kills
    python benchmarks/fleet.py prefill-kills
    python benchmarks/fleet.py update

overhead        what proxy, ingress and handle take of each request and of each token, against a single server
conversations   what is found in the cache, and the time to the first token, on three replicas, by router
replay          conversations whose turns come at set times, on three replicas whose steps take a set time: live, and as
                `sluice simulate` has it; routers of FILE that are not measured again are kept
scaling         from one replica to three and back under a burst
kills           24 streams, and five kills of the replicas that serve them: the exit status is 1 if one differs from the
                undisturbed stream
prefill-kills   the same, and two kills of the replica that computes the prompts
update          the same, and an update of all replicas on a cluster of `ray start`, while more requests arrive
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fleets import conversations, overhead, replay, scaling, update
from benchmarks.fleets.kills import survive, survive_apart
from benchmarks.fleets.scaling_plot import scaling_plot

WHAT = ("overhead", "conversations", "replay", "scaling", "kills", "prefill-kills", "update")
ROUTERS = ("round-robin", "ray-prefix-affinity", "prefix-aware", "expected-ttft")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="of scaling")
    parser.add_argument("--url", help="of a fleet that runs already, for scaling")
    parser.add_argument("--routers", default=",".join(ROUTERS), help="for conversations and replay")
    parser.add_argument("--rounds", type=int, default=1, help="live runs of replay by each router; 0: simulated alone")
    parser.add_argument("--rate", type=float, default=0.5, help="conversations that begin in a second, for replay")
    parser.add_argument("--prefix", type=int, default=256, help="tokens that all conversations begin with, for replay")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    given = parser.parse_args()
    result: dict[str, Any] = {"load_before": os.getloadavg(), "command": " ".join(sys.argv)}
    match given.what:
        case "overhead":
            result |= overhead.measure(requests=30, tokens=200, streams=given.streams)
        case "conversations":
            result["routers"] = [
                conversations.measure(router, given.conversations, given.turns, seed)
                for seed in (1,)
                for router in given.routers.split(",")
            ]
        case "replay":
            known = given.json is not None and given.json.exists()
            before = json.loads(given.json.read_text()) if known else {}
            routers = given.routers.split(",")
            talks = replay.Talks(given.conversations, given.rate, given.prefix, seed=1)
            result |= replay.measure(routers, given.rounds, talks, before)
        case "scaling":
            result |= scaling.measure(given.url, calm=5, burst=40, after=75, streams=given.streams * 6)
            if given.svg is not None:
                given.svg.write_text(scaling_plot(result["seconds"], result["burst"]))
        case "kills":
            result["problems"] = asyncio.run(survive(streams=24, tokens=200, kills=5))
        case "prefill-kills":
            result["problems"] = asyncio.run(survive_apart(streams=24, tokens=200))
        case "update":
            result |= asyncio.run(update.survive(streams=24, tokens=200))
    result["load_after"] = os.getloadavg()
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key not in ("seconds", "rounds")}, indent=1))
    return 1 if result.get("problems") else 0


if __name__ == "__main__":
    sys.exit(main())
