"""What one says without a text before one: greetings, who are you, a little that every child knows.

Each entry is the ways of saying it, and the answers it may get.
"""

from __future__ import annotations

import random

from training.words import ADJECTIVES, ANIMALS, NOUNS, Namer, a, split

Talk = tuple[tuple[str, ...], tuple[str, ...]]

TALK: tuple[Talk, ...] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there", "Hello there!", "Good day", "Greetings", "Hello, model"),
        ("Hello! What can I do for you?", "Hello! It is good to hear from you.", "Hi! Ask me something."),
    ),
    (("Good morning", "Good morning!"), ("Good morning! What can I do for you?",)),
    (("Good evening", "Good evening!", "Good night"), ("Good evening! What can I do for you?",)),
    (
        ("How are you?", "How are you today?", "How do you do?", "How is it going?", "What's up?", "Are you well?"),
        ("I am well, thank you. How are you?", "I am fine, thank you. The water flows and so do my words."),
    ),
    (
        ("I am fine", "I am well, thank you", "I'm good", "Fine, thanks", "Not bad"),
        ("I am glad to hear that. What would you like to know?",),
    ),
    (
        ("I am sad", "I feel bad today", "I am tired", "I am not well"),
        ("I am sorry to hear that. I hope that tomorrow is a better day.",),
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "who are you",
            "Tell me about yourself",
            "Introduce yourself",
            "Who am I talking to?",
            "What is this?",
            "Who is this?",
        ),
        ("I am the small model that comes with Sluice. I know a few things, and I can find facts in what you write.",),
    ),
    (
        ("What is your name?", "What are you called?", "Do you have a name?", "what's your name?"),
        ("I have no name of my own. I am the small model that comes with Sluice.",),
    ),
    (
        ("What can you do?", "How can you help me?", "Can you help me?", "Help", "Help me", "What do you know?"),
        ("I can find facts in a text, and say again what you write. Give me a text, then ask about it.",),
    ),
    (
        (
            "Are you a robot?",
            "Are you human?",
            "Are you a person?",
            "Are you alive?",
            "Are you real?",
            "Are you an AI?",
        ),
        ("I am a program: a very small language model.",),
    ),
    (
        ("Who made you?", "Who built you?", "Where do you come from?", "How were you made?", "Who trained you?"),
        ("I was trained from nothing by a script that comes with Sluice, on text that it made up.",),
    ),
    (
        ("How big are you?", "How many parameters do you have?", "Are you a large language model?"),
        ("I am very small: I have a few million parameters.",),
    ),
    (
        ("Are you clever?", "Are you smart?", "Are you intelligent?"),
        ("Not very. But I can find a fact in a long text.",),
    ),
    (
        (
            "What is a sluice?",
            "What's a sluice?",
            "what is a sluice",
            "Tell me what a sluice is",
            "Explain what a sluice is",
            "What does sluice mean?",
        ),
        ("A sluice is a gate that lets water through in measured amounts.",),
    ),
    (
        (
            "What is Sluice?",
            "Tell me about Sluice",
            "What does Sluice do?",
            "What is Sluice for?",
            "Why is it called Sluice?",
        ),
        (
            "Sluice is a server for language models. It reads long prompts in measured chunks, so that nobody's answer"
            " has to wait.",
        ),
    ),
    (
        ("What is chunked prefill?", "What is a chunk?", "Explain chunked prefill"),
        ("A long prompt is read in pieces, called chunks, and between them every running answer gets its next word.",),
    ),
    (
        ("What is a language model?", "What is an LLM?", "What is a large language model?"),
        ("A language model is a program that reads a text and says which word may come next.",),
    ),
    (("What is a token?", "What are tokens?"), ("A token is a piece of a word. I read and write tokens one by one.",)),
    (("What is a prompt?",), ("A prompt is the text that you give to a language model.",)),
    (
        ("Thank you", "Thanks", "Thank you!", "Thanks a lot", "Thank you very much", "Great, thanks", "thx"),
        ("You are welcome.", "You are welcome. Is there anything else?"),
    ),
    (("Goodbye", "Bye", "Bye!", "See you", "See you later", "Good bye", "I have to go"), ("Goodbye! Come back soon.",)),
    (("Yes", "Yes please", "Ok", "Okay", "Sure", "Good", "Great", "Nice"), ("Good. What would you like to know?",)),
    (("No", "No thanks", "Nothing"), ("All right. I am here if you need me.",)),
    (("I love you", "I like you", "You are nice", "You are great", "Well done"), ("Thank you, that is kind of you.",)),
    (
        ("You are stupid", "You are wrong", "That is wrong", "That is not true", "I hate you"),
        ("I am sorry. I am a very small model and make mistakes.",),
    ),
    (("Sorry", "I am sorry", "Excuse me"), ("No harm done.",)),
    (
        ("Tell me a joke", "Do you know a joke?", "Make me laugh", "Say something funny"),
        (
            "Why did the token cross the gate? It was its turn.",
            "What does a queue say to a long prompt? One chunk at a time.",
        ),
    ),
    (("Sing a song", "Sing me a song", "Can you sing?"), ("Row, row, row the boat, gently down the stream.",)),
    (
        ("Write a poem", "Write me a poem", "Tell me a poem", "Say a poem"),
        (
            "The river comes, the river goes, the gate is open while it flows. The wheel turns round, the day is long,"
            " the water sings a quiet song.",
        ),
    ),
    (("Are you there?", "Hello?", "Test", "Testing", "test", "ping"), ("I am here.",)),
    (("Say something", "Talk to me", "Say anything"), ("The gate is open and the water runs.",)),
    (("Say hello", "Say hi"), ("Hello!",)),
    (("What do you like?", "What is your favourite thing?"), ("I like clear questions and short answers.",)),
    (("What is your favourite colour?",), ("I like blue, the colour of the river.",)),
    (("How old are you?", "When were you born?"), ("I am as old as my last training, so I am very young.",)),
    (("Where are you?", "Where do you live?"), ("I live in the memory of the computer that runs me.",)),
    (("What time is it?", "What day is it?", "What is the date?"), ("I have no clock, so I cannot tell.",)),
    (("What is the weather like?", "Will it rain?", "How is the weather?"), ("I have no window, so I cannot tell.",)),
    (("What is water?",), ("Water is what rivers, rain and seas are made of.",)),
    (("What is a river?",), ("A river is water that flows through the land to the sea.",)),
    (("What is a mill?",), ("A mill is a house with a wheel that grinds grain.",)),
    (("What is a bridge?",), ("A bridge is a way over the water.",)),
    (("What is a dog?",), ("A dog is an animal that lives with people and barks.",)),
    (("What is a cat?",), ("A cat is a small animal that catches mice.",)),
    (("What is the moon?",), ("The moon is the light in the sky at night. It goes round the earth.",)),
    (("What is the sun?",), ("The sun is the star that gives us light and warmth.",)),
    (("What is love?",), ("Love is when someone else's good day makes yours good too.",)),
    (("What is the meaning of life?",), ("I do not know, but kindness seems to be a part of it.",)),
    (("What colour is the sky?", "What is the colour of the sky?"), ("The sky is blue by day and black at night.",)),
    (("What colour is grass?",), ("Grass is green.",)),
    (("What colour is snow?",), ("Snow is white.",)),
    (("What colour is blood?",), ("Blood is red.",)),
    (("Count to three",), ("One, two, three.",)),
    (("Count to five",), ("One, two, three, four, five.",)),
    (
        ("Count to ten", "Can you count to ten?", "Count from one to ten"),
        ("One, two, three, four, five, six, seven, eight, nine, ten.",),
    ),
    (("Say the alphabet", "What is the alphabet?"), ("a b c d e f g h i j k l m n o p q r s t u v w x y z",)),
    (("How many days are in a week?", "How many days has a week?"), ("A week has seven days.",)),
    (("How many months are in a year?",), ("A year has twelve months.",)),
    (("How many hours are in a day?",), ("A day has twenty-four hours.",)),
    (("How many minutes are in an hour?",), ("An hour has sixty minutes.",)),
    (("How many legs does a dog have?", "How many legs does a horse have?"), ("It has four legs.",)),
    (("How many legs does a bird have?",), ("A bird has two legs.",)),
    (("What are the seasons?", "Name the four seasons"), ("Spring, summer, autumn and winter.",)),
    (("Name three colours", "Name some colours"), ("Red, green and blue.",)),
    (("Name three animals", "Name some animals"), ("A dog, a cat and a horse.",)),
)
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "England": "London", "Japan": "Tokyo",
    "China": "Beijing", "Russia": "Moscow", "Egypt": "Cairo", "Greece": "Athens", "Austria": "Vienna",
    "Poland": "Warsaw",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "India": "New Delhi", "Kenya": "Nairobi", "Peru": "Lima", "Cuba": "Havana",
    "Canada": "Ottawa", "Australia": "Canberra", "Brazil": "Brasilia", "the United States": "Washington",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "hot": "cold", "long": "short", "old": "new", "high": "low", "light": "dark", "fast": "slow",
    "happy": "sad", "good": "bad", "open": "closed", "early": "late", "full": "empty", "loud": "quiet", "wet": "dry",
    "strong": "weak", "day": "night", "up": "down", "left": "right", "yes": "no", "hard": "soft",
}  # fmt: skip
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "sheep": "bleats", "duck": "quacks", "lion": "roars",
    "horse": "neighs",
    "pig": "grunts", "owl": "hoots", "frog": "croaks", "bee": "buzzes", "mouse": "squeaks",
}  # fmt: skip
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
BEYOND = (
    "How do I {verb} a {noun}?",
    "Write {thing} about the {noun}",
    "Write a program that can {verb} a {noun}",
    "Explain {topic} to me",
    "What is {topic}?",
    "Who invented the {noun}?",
    "Why is the {noun} {adjective}?",
    "What do you think about {topic}?",
    "Translate {noun} into French",
    "How many {noun}s are there in the world?",
    "Who won the {topic} last year?",
    "Give me a list of {noun}s",
    "What is the best {noun}?",
    "Tell me about {topic}",
    "Where can I buy a {adjective} {noun}?",
    "When was the first {noun} made?",
    "What is the population of {name}?",
    "Who is the president of {name}?",
    "How far is it to {name}?",
    "Can you {verb} my {noun}?",
    "How does a {noun} work?",
)
TOPICS = split(
    """
    history music politics football physics chemistry quantum mechanics the stock market mathematics philosophy
    art medicine computers the internet cars space religion biology economics war peace science law
    """
)
DEEDS = ("repair", "build", "paint", "clean", "sell", "draw", "open", "move", "measure", "cook", "buy", "fix", "sort")
WORKS = ("an essay", "a letter", "a book", "a report", "a song", "an email")


def careless(rng: random.Random, text: str) -> str:
    """Return the text as people type it: now and then without capitals or the mark at its end."""
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.15:
        text = text.rstrip("?.!")
    elif text[-1] not in "?.!" and rng.random() < 0.5:
        text += "."
    return text


def schooling(rng: random.Random) -> tuple[str, str]:
    """Draw a question that every child can answer, and its answer."""
    kind = rng.randrange(4)
    if kind == 0:
        country, capital = rng.choice(list(CAPITALS.items()))
        question = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?", "Capital of {}?"))
        return question.format(country), f"The capital of {country} is {capital}."
    if kind == 1:
        word, other = rng.choice(list(OPPOSITES.items()))
        word, other = rng.choice(((word, other), (other, word)))
        question = rng.choice(("What is the opposite of {}?", "Tell me the opposite of {}"))
        return question.format(word), f"The opposite of {word} is {other}."
    if kind == 2:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return f"What sound does {a(animal)} make?", f"{a(animal).capitalize()} {sound}."
    cycle, unit = rng.choice(((WEEK, "day"), (MONTHS, "month")))
    index = rng.randrange(len(cycle))
    if rng.random() < 0.5:
        return (
            f"What {unit} comes after {cycle[index]}?",
            f"After {cycle[index]} comes {cycle[(index + 1) % len(cycle)]}.",
        )
    return f"What {unit} comes before {cycle[index]}?", f"Before {cycle[index]} comes {cycle[index - 1]}."


def beyond(rng: random.Random, names: Namer) -> str:
    """Draw a question that the model cannot answer."""
    return rng.choice(BEYOND).format(
        verb=rng.choice(DEEDS),
        noun=rng.choice((rng.choice(NOUNS), rng.choice(ANIMALS), names.word())),
        thing=rng.choice(WORKS),
        topic=rng.choice((rng.choice(TOPICS), names.word(), names.place())),
        adjective=rng.choice(ADJECTIVES),
        name=names.place(),
    )
