"""`sluice fleet` whose replicas have the engines of `benchmarks.fleets.timed`, with the same flags."""

from __future__ import annotations

import argparse
import sys

from sluice.fleet.arguments import add_fleet_arguments
from sluice.fleet.command import run_fleet

if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_fleet_arguments(parser)
    sys.exit(run_fleet(vars(parser.parse_args()), factory="benchmarks.fleets.timed:build"))
