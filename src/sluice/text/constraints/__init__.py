"""What an answer must look like, as users ask for it, and the grammars that the engine keeps an answer to.

`shapes` describes an answer: a JSON schema, a regular expression, a choice, a grammar, and compositions of these.
`grammar_of` (in `grammars`) turns a shape into the text of `Submit.grammar`:

    from sluice.text.constraints.grammars import grammar_of
    from sluice.text.constraints.shapes import JsonSchema, Literal, Sequence, Tag, Tagged, after_reasoning

    grammar_of(JsonSchema({"type": "object"}))                                  # JSON alone
    grammar_of(after_reasoning(JsonSchema({"type": "object"}), "</think>"))     # any text, the tag, then JSON
    call = Tag("<tool_call>\n", JsonSchema(schema), "\n</tool_call>")
    grammar_of(Tagged((call,), ("<tool_call>",)))                               # text, with calls in between
    grammar_of(Tagged((call,), ("<tool_call>",), at_least_one=True))            # at least one call
    grammar_of(call)                                                            # one call, and nothing else

A tag that the tokenizer has as one special token is given by its token id, in the place of its text.
"""
