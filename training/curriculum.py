"""The lessons of the training, from short texts in plain words to long ones in any words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from training.rows import Lesson

WARMUP = 100
COOLDOWN = 0.66
"""Share of a course's steps over which the learning rate falls to nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of the curriculum: each of its `steps` draws one of the batches, (rows, their length in tokens)."""

    steps: int
    batches: tuple[tuple[int, int], ...]
    lesson: Lesson


@dataclass(frozen=True, slots=True)
class Course:
    """Stages over which the rate warms up, stays and falls to nothing."""

    peak: float
    """Share of the optimizers' learning rates that it warms up to."""
    stages: tuple[Stage, ...]


LONG = ((8, 512), (4, 1024), (4, 2048))
FIRST = (
    Stage(200, ((32, 128),), Lesson(recital_share=0.9, variety=0.15)),
    Stage(300, ((16, 256),), Lesson(recital_share=0.7, dense_share=0.8, variety=0.5)),
    Stage(1700, ((16, 256),), Lesson(recital_share=0.4, dense_share=0.8)),
    Stage(1000, ((16, 256), (8, 512)), Lesson(recital_share=0.25, dense_share=0.6, blends=0.3)),
    Stage(800, LONG, Lesson(talk_share=0.3, recital_share=0.15, dense_share=0.4, blends=0.3)),
    Stage(400, (*LONG, (2, 4096)), Lesson(talk_share=0.3, recital_share=0.1, dense_share=0.3, blends=0.3)),
)
SECOND = (
    Stage(1600, LONG, Lesson(talk_share=0.15, recital_share=0.05, dense_share=0.35, blends=0.3, loose=True)),
    Stage(400, (*LONG, (2, 4096)), Lesson(talk_share=0.2, dense_share=0.25, blends=0.3, loose=True)),
)
CURRICULUM = (Course(1.0, FIRST), Course(0.5, SECOND))
"""The second course goes on where the first has come to rest; what it draws was thought of when that was measured."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step reads, and how fast it learns."""

    rows: int
    length: int
    """Tokens of each row."""
    lesson: Lesson
    rate: float
    """Share of the optimizers' learning rates."""


def schedule(step: int, total: int) -> float:
    """Return the share of the rate at a step: it warms up, stays and falls."""
    return min((step + 1) / WARMUP, 1.0, max((total - step) / (COOLDOWN * total), 0.0))


def planned(scale: float) -> list[Batch]:
    """Return the batches of all steps, where each stage has `scale` times its steps, and at least one."""
    rng = random.Random("lengths")
    batches: list[Batch] = []
    for course in CURRICULUM:
        stages = [stage for stage in course.stages for _ in range(max(1, round(stage.steps * scale)))]
        for step, stage in enumerate(stages):
            rate = course.peak * schedule(step, len(stages))
            batches.append(Batch(*rng.choice(stage.batches), stage.lesson, rate))
    return batches
