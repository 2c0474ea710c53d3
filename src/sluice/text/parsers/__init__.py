"""Answers of chats: text, reasoning and calls of tools, told apart as they are generated.

`events` names what an answer consists of, and every API spells its answers from these events. A parser makes them from
the text of a model (`parsing`); which one depends on the format that the model was trained on (`formats`, `reasoning`,
and both together in `replies`).
"""
