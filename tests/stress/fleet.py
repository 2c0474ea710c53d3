"""Check that no stream of a fleet on Ray Serve loses a token (needs the extra `ray`):

    python tests/stress/fleet.py kills
    python tests/stress/fleet.py prefill-kills
    python tests/stress/fleet.py update
    python tests/stress/fleet.py fronts

kills           24 streams, and five kills of the replicas that serve them
prefill-kills   the same, and two kills of the replica that computes the prompts
update          the same, and an update of all replicas on a cluster of `ray start`, while more requests arrive
fronts          16 streams whose ingress is killed, and then the proxy; each is asked for again from its last event

The exit status is 1 if a stream differs from the undisturbed one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from stress.fleets import fronts, update
from stress.fleets.kills import survive, survive_apart

STREAMS, TOKENS, KILLS = 24, 200, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "prefill-kills", "update", "fronts"))
    given = parser.parse_args()
    result: dict[str, Any]
    match given.what:
        case "kills":
            result = {"problems": asyncio.run(survive(STREAMS, TOKENS, KILLS))}
        case "prefill-kills":
            result = {"problems": asyncio.run(survive_apart(STREAMS, TOKENS))}
        case "fronts":
            result = asyncio.run(fronts.survive(16, TOKENS))
        case _:
            result = asyncio.run(update.survive(STREAMS, TOKENS))
    print(json.dumps(result, indent=1))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
