"""Facts as open slots: "the X of Y is Z" in many forms, for any X, Y and Z."""

from __future__ import annotations

from training.phrasings import Phrasings, ways

OF_A_SUBJECT = Phrasings(
    ways(
        """
        the {x} of {y} is {z} | {y}'s {x} is {z} | the {x} for {y} is {z} | the {x} of {y} was {z}
        | {z} is the {x} of {y} | {z} is {y}'s {x} | for {y}, the {x} is {z}
        | as for {y}, the {x} is {z} | {y} has {z} as {x} | {y} has the {x} {z}
        | {y}: {x} {z} | {y}, {x}: {z} | {x} of {y}: {z} | {y} - {x} - {z} | {y}'s {x}: {z}
        | the {x} that {y} has is {z} | the {x} that belongs to {y} is {z} | {y} uses {z} as {x} | {y} chose {z} as {x}
        | {z} serves as the {x} of {y} | we know {z} as the {x} of {y} | they gave {y} the {x} {z}
        | the {x} given for {y} is {z} | with {y}, the {x} is {z} | when it comes to {y}, the {x} is {z}
        | the {b} {x} is {z} | {b} {x} is {z} | {b} {x}: {z} | {b} {x} = {z} | {z} was picked as {y}'s {x}
        | the {x} of {y} has always been {z} | the {x} of {y} is now {z} | on the list, the {x} of {y} is {z}
        | {y} is known for its {x}, which is {z} | the {x} at {y} is {z} | the {x} in {y} is {z}
        | {y} got {z} for a new {x} | the {x} of {y} changed to {z} | {y} (its {x} is {z}) is here
        """
    ),
    ways(
        """
        the {x} we have for {y} is {z} | {y} goes with the {x} {z} | anyone asking for the {x} of {y} is told {z}
        | {z}, that would be the {x} of {y} | if you ask about {y}, the {x} is {z} | the {x} written beside {y} is {z}
        | regarding {y}, we settled on {z} as the {x} | somebody made {z} the {x} of {y}
        """
    ),
)
QUESTIONS = Phrasings(
    ways(
        """
        what is the {x} of {y} | what is {y}'s {x} | what's the {x} of {y} | what is the {x} for {y}
        | which {x} does {y} have | tell me the {x} of {y} | tell me {y}'s {x} | {y}'s {x} | {x} of {y} | {b} {x}
        | what was the {x} of {y} | what was {y}'s {x} again | do you know the {x} of {y} | can you tell me {y}'s {x}
        | could you give me the {x} for {y} | give me the {x} of {y} | i need the {x} of {y} | i forgot the {x} of {y}
        | what {x} does {y} have | what {x} was given for {y} | please find the {x} of {y} | look up the {x} for {y}
        | what does the text say about the {x} of {y} | according to the text, what is the {x} of {y}
        | for {y}, what is the {x} | say the {x} of {y} | the {x} of {y} is what | i would like to know the {x} of {y}
        | remind me of {y}'s {x} | name the {x} of {y} | what did they say {y}'s {x} was | what's {y}'s {x}
        | any idea what the {x} of {y} is | what is the {b} {x} | and the {x} of {y} | who or what is the {x} of {y}
        | who is the {x} of {y} | who is {y}'s {x} | what is the {x} at {y} | where does it say what the {x} of {y} is
        """
    ),
    ways(
        """
        what do we have as the {x} of {y} | i can't remember the {x} of {y}, help me out
        | what should i write down as {y}'s {x} | quick question about the {x} of {y}, what is it
        | so what would the {x} of {y} be | which {x} goes with {y} | someone asked me for the {x} of {y}, what do i say
        | about {y}: what's the {x}
        """
    ),
)
PRONOUN = Phrasings(
    ways(
        """
        its {x} is {z} | her {x} is {z} | his {x} is {z} | their {x} is {z} | the {x} is {z} | {z} is the {x}
        | as {x} it has {z} | the {x} there is {z}
        """
    )
)
"""Statements about the subject that the sentence before named."""
ALONE = Phrasings(
    ways(
        """
        the {x} is {z} | {x}: {z} | {z} is the {x} | our {x} is {z} | the {x} was set to {z} | today the {x} is {z}
        | use {z} as the {x} | the new {x} is {z} | the {x} = {z} | {x} is {z} | the {x} has been {z} since spring
        | the {x} is still {z} | we agreed that the {x} is {z} | the {x} will be {z}
        """
    ),
    ways("the {x} got replaced by {z} | you will need the {x}, namely {z} | they went with {z} for the {x}"),
)
ALONE_QUESTIONS = Phrasings(
    ways(
        """
        what is the {x} | what's the {x} | {x} | tell me the {x} | do you know the {x} | which {x} was it
        | i need the {x} | give me the {x} | what was the {x} again | remind me of the {x} | what is our {x}
        | what does it say the {x} is | can you tell me the {x} | what is the {x} today | i forgot the {x}
        | who is the {x} | say the {x}
        """
    ),
    ways(
        "what {x} should i use | could someone send me the {x} | so the {x} would be what | i keep forgetting that {x}"
    ),
)
MINE = Phrasings(
    ways(
        """
        my {x} is {z} | {z} is my {x}
        | the {x} i have is {z} | my {x}: {z} | i have {z} as my {x} | i chose {z} as my {x}
        | my {x} has always been {z} | my new {x} is {z} | i said my {x} is {z} | they gave me the {x} {z}
        """
    ),
    ways("people tell me that my {x} must be {z} | you can put down {z} as my {x} | for my {x} i went with {z}"),
)
MY_QUESTIONS = Phrasings(
    ways(
        """
        what is my {x} | what's my {x} | tell me my {x} | do you remember my {x} | what did i say my {x} was | my {x}
        | which {x} do i have | what was my {x} again | i forgot my {x} | do you know my {x} | give me my {x}
        | can you tell me my {x} | who is my {x} | remind me of my {x}
        """
    ),
    ways("could you repeat what my {x} is | i told you my {x}, what was it | what would you say is my {x}"),
)
