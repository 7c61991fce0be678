"""Short instructions and answers that follow them: the data for warming up nano-instruct.

Each kind is a function from a random generator to an instruction and its answer. If several answers are good,
one of them is drawn, so answers vary and reinforcement learning has a choice. If the right answer must be
worked out, only a share of the dialogues is right (`ACCURACY`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from instruct_words import (
    ACTIONS,
    ADJECTIVES,
    CATEGORIES,
    CLOSINGS,
    GREETINGS,
    OPPOSITES,
    PLAIN_WORDS,
    POLITE,
    THINGS,
    VERBS,
)

from tinkergym.messages import Message, assistant, system, user

Rng = np.random.Generator
Pair = tuple[str, str]
T = TypeVar("T")

ACCURACY = 0.6
"""Share of right answers if the right answer must be worked out; the others are near misses."""
_SYSTEM_SHARE = 0.15
_FORM_SHARE = 0.2
_SYSTEM = [
    "You are a helpful assistant.",
    "Answer in as few words as you can.",
    "You are a player in a game. Follow the rules.",
    "Do what the user asks.",
    "You are a friendly assistant. Be polite.",
    "Answer with one word, nothing else.",
]
_DIGITS = CATEGORIES["number word"]


def dialogues(rng: Rng, count: int, kinds: Sequence[str]) -> Iterator[list[Message]]:
    """Yield `count` dialogues of the kinds in `kinds`, names of `KINDS` and `GAMES`, uniformly drawn."""
    for _ in range(count):
        kind = _one(rng, kinds)
        if kind in GAMES:
            yield _framed(rng, GAMES[kind](rng))
            continue
        instruction, answer = KINDS[kind](rng)
        if rng.random() < _FORM_SHARE:
            instruction, answer = _in_a_form(rng, instruction, answer)
        yield _framed(rng, [user(instruction), assistant(answer)])


def _framed(rng: Rng, messages: list[Message]) -> list[Message]:
    return [system(_one(rng, _SYSTEM)), *messages] if rng.random() < _SYSTEM_SHARE else messages


def _one(rng: Rng, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]


def _some(rng: Rng, items: Sequence[str], count: int) -> list[str]:
    return [items[int(i)] for i in rng.permutation(len(items))[:count]]


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _mostly(rng: Rng, right: str, others: Sequence[str]) -> str:
    return right if rng.random() < ACCURACY or not others else _one(rng, others)


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _in_a_form(rng: Rng, instruction: str, answer: str) -> Pair:
    """Ask for the same answer between tags, after a word, as JSON or in capitals."""
    forms = [
        ("Put your answer between <answer> and </answer>.", f"<answer>{answer}</answer>"),
        ("Begin with 'Answer:'.", f"Answer: {answer}"),
        ('Answer in JSON with the key "answer".', json.dumps({"answer": answer})),
        ("Write in capital letters.", answer.upper()),
        ("Write in lower case.", answer.lower()),
        ("End with an exclamation mark.", answer.rstrip(".!?") + "!"),
        ("End with a full stop.", answer.rstrip(".!?") + "."),
        ("Answer with nothing else.", answer),
    ]
    request, formed = _one(rng, forms)
    return (f"{instruction} {request}" if rng.random() < 0.7 else f"{request} {instruction}"), formed


# --- to say and to repeat ---------------------------------------------------------------------------------


def _say(rng: Rng) -> Pair:
    words = " ".join(_some(rng, PLAIN_WORDS, int(rng.integers(1, 5))))
    asked = [
        "Say {}.",
        "Write {}.",
        "Say '{}'.",
        'Reply with "{}".',
        "Repeat: {}",
        "Write the words: {}",
        "{}\nSay it again.",
    ]
    return _one(rng, asked).format(words), words


def _say_often(rng: Rng) -> Pair:
    word, number = _one(rng, PLAIN_WORDS), int(rng.integers(2, 6))
    times = "twice" if number == 2 else f"{_one(rng, [str(number), _DIGITS[number - 1]])} times"
    asked = _one(rng, ["Say {} {}.", "Write {} {}.", "Write the word {} {}.", "Repeat {} {}."])
    said = number if rng.random() < ACCURACY else int(rng.integers(1, 7))
    return asked.format(word, times), " ".join([word] * said)


def _greet(rng: Rng) -> Pair:
    name = _one(rng, CATEGORIES["name"])
    if rng.random() < 0.3:
        asked = ["Say goodbye to {}.", "Write a farewell to {}.", "{} leaves. What do you say?"]
        return _one(rng, asked).format(name), f"{_one(rng, CLOSINGS)}, {name}{_one(rng, ['.', '!'])}"
    asked = ["Say hello to {}.", "Greet {}.", "Write a greeting to {}.", "{} comes in. What do you say?"]
    more = _one(rng, ["", "", " How are you?", f" Nice to see you, {_one(rng, POLITE)}.", " Welcome!"])
    return _one(rng, asked).format(name), f"{_one(rng, GREETINGS)}, {name}{_one(rng, ['.', '!'])}{more}"


def _ask_politely(rng: Rng) -> Pair:
    thing = _one(rng, THINGS)
    asked = ["Ask for the {}.", "Ask politely for the {}.", "You want the {}. What do you say?"]
    said = [
        "Give me the {}.",
        "Can I have the {}, please?",
        "The {}, please.",
        "I want the {}.",
        "Please give me the {}.",
    ]
    return _one(rng, asked).format(thing), _one(rng, said).format(thing)


# --- to choose --------------------------------------------------------------------------------------------


def _name_one(rng: Rng) -> Pair:
    category = _one(rng, list(CATEGORIES))
    members = CATEGORIES[category]
    number = 1 if rng.random() < 0.7 else int(rng.integers(2, 4))
    if number == 1:
        asked = [
            "Name {}.",
            "Tell me {}.",
            "Write the name of {}.",
            "What is {}? Give an example.",
            "Think of {}.",
        ]
        return _one(rng, asked).format(_article(category)), _one(rng, members)
    asked = _one(rng, ["Name {} of this kind: {}.", "Give {} examples of this: {}."])
    return asked.format(_DIGITS[number - 1], category), ", ".join(_some(rng, members, number))


def _choose(rng: Rng) -> Pair:
    pool = _one(rng, [*CATEGORIES.values(), ACTIONS, PLAIN_WORDS])
    options = _some(rng, pool, int(rng.integers(2, 6)))
    asked = [
        f"Choose one: {_listed(options, 'or')}.",
        f"Which do you like best: {_listed(options, 'or')}?",
        f"Pick one of these words: {', '.join(options)}",
        f"Options: {', '.join(options)}. Answer with one of them.",
        "Choose one.\n" + "\n".join(f"- {option}" for option in options),
    ]
    return _one(rng, asked), _one(rng, options)


def _pick_a_number(rng: Rng) -> Pair:
    low = int(rng.integers(0, 10))
    high = low + int(rng.integers(2, _one(rng, [10, 50, 100])))
    asked = [
        "Pick a number from {} to {}.",
        "Choose a number between {} and {}.",
        "Guess a number from {} to {}.",
    ]
    return _one(rng, asked).format(low, high), str(int(rng.integers(low, high + 1)))


def _yes_or_no(rng: Rng) -> Pair:
    category = _one(rng, list(CATEGORIES))
    own = rng.random() < 0.5
    other = category if own else _one(rng, [name for name in CATEGORIES if name != category])
    word = _one(rng, CATEGORIES[other])
    right = "yes" if word in CATEGORIES[category] else "no"
    asked = _one(rng, ["Is {} {}?", "Is {} {}? Answer yes or no.", "Yes or no: {} is {}."])
    return asked.format(word, _article(category)), _mostly(rng, right, ["yes", "no"])


# --- to work out ------------------------------------------------------------------------------------------


def _add(rng: Rng) -> Pair:
    a, b = int(rng.integers(0, 11)), int(rng.integers(0, 11))
    sign, right = ("+", a + b) if rng.random() < 0.6 or b > a else ("-", a - b)
    asked = _one(rng, ["What is {} {} {}?", "{} {} {} =", "How much is {} {} {}?", "Calculate {} {} {}."])
    near = [str(max(0, right + off)) for off in (-2, -1, 1, 2)]
    return asked.format(a, sign, b), _mostly(rng, str(right), near)


def _larger(rng: Rng) -> Pair:
    a, b = (int(n) for n in rng.permutation(100)[:2])
    larger = rng.random() < 0.5
    right = str(max(a, b) if larger else min(a, b))
    which = _one(rng, ["larger", "greater", "bigger"]) if larger else _one(rng, ["smaller", "less"])
    asked = _one(rng, ["Which number is {}, {} or {}?", "Which is {}: {} or {}?"])
    return asked.format(which, a, b), _mostly(rng, right, [str(a), str(b)])


def _opposite(rng: Rng) -> Pair:
    pair = _one(rng, OPPOSITES)
    word, right = pair if rng.random() < 0.5 else pair[::-1]
    asked = [
        "What is the opposite of {}?",
        "Write the opposite of {}.",
        "The opposite of {} is",
        "Not {} but",
    ]
    return _one(rng, asked).format(word), _mostly(rng, right, [_one(rng, _one(rng, OPPOSITES))])


def _place_of_a_word(rng: Rng) -> Pair:
    words = _some(rng, PLAIN_WORDS, int(rng.integers(2, 6)))
    places = {"first": 0, "second": 1, "last": -1}
    place = _one(rng, list(places))
    asked = ["Write the {} word: {}", "What is the {} word of this list: {}?", "Repeat only the {} word: {}"]
    text = _one(rng, [" ", ", "]).join(words)
    return _one(rng, asked).format(place, text), _mostly(rng, words[places[place]], words)


def _reorder(rng: Rng) -> Pair:
    words = _some(rng, PLAIN_WORDS, int(rng.integers(2, 5)))
    between = _one(rng, [" ", ", "])
    kind, right = _one(
        rng, [("in reverse order", words[::-1]), ("in the order of the alphabet", sorted(words))]
    )
    wrong = between.join(_some(rng, words, len(words)))
    return f"Write these words {kind}: {between.join(words)}", _mostly(rng, between.join(right), [wrong])


def _count(rng: Rng) -> Pair:
    number = int(rng.integers(1, 6))
    if rng.random() < 0.4:
        up_to = int(rng.integers(2, 11))
        right = " ".join(str(n) for n in range(1, up_to + 1))
        return f"Count from 1 to {up_to}.", right
    words = _some(rng, PLAIN_WORDS, number)
    asked = _one(rng, ["How many words are these: {}?", "Count the words: {}"])
    near = [str(n) for n in (number - 1, number + 1) if n > 0]
    return asked.format(" ".join(words)), _mostly(rng, str(number), near)


def _spell(rng: Rng) -> Pair:
    word = _one(rng, [word for word in PLAIN_WORDS if len(word) <= 6])
    kind = int(rng.integers(3))
    if kind == 0:
        return f"Spell {word}.", "-".join(word)
    if kind == 1:
        return f"What is the first letter of {word}?", word[0]
    return f"How many letters does {word} have?", _mostly(
        rng, str(len(word)), [str(len(word) - 1), str(len(word) + 1)]
    )


# --- to write ---------------------------------------------------------------------------------------------


def _sentence_about(rng: Rng, noun: str) -> str:
    adjective, verb, place = _one(rng, ADJECTIVES), _one(rng, VERBS), _one(rng, CATEGORIES["place"])
    forms = [
        f"The {noun} {verb}.",
        f"The {adjective} {noun} {verb}.",
        f"The {noun} {verb} in the {place}.",
        f"The {adjective} {noun} {verb} in the {place}.",
        f"I see {_article(adjective)} {noun} in the {place}.",
        f"There is {_article(noun)} in the {place}.",
        f"My {noun} is {adjective}.",
        f"I like the {adjective} {noun}!",
        f"Where is the {noun}?",
        f"A {adjective} {noun} {verb}, and {_one(rng, CATEGORIES['name'])} {_one(rng, VERBS)}.".replace(
            "A a", "An a"
        ),
    ]
    return _one(rng, forms)


def _write_a_sentence(rng: Rng) -> Pair:
    noun = _one(rng, [*CATEGORIES["animal"], *THINGS, *CATEGORIES["vehicle"], *CATEGORIES["job"]])
    asked = [
        "Write a sentence about {}.",
        "Write a short sentence with the word {}.",
        "Tell me something about {}.",
        "Say something about {}.",
    ]
    form = _one(rng, asked)
    return form.format(noun if "word" in form else _article(noun)), _sentence_about(rng, noun)


def _write_a_story(rng: Rng) -> Pair:
    noun = _one(rng, [*CATEGORIES["animal"], *CATEGORIES["job"]])
    count = int(rng.integers(2, 4))
    asked = _one(rng, ["Write {} sentences about {}.", "Tell a story in {} sentences about {}."])
    said = count if rng.random() < ACCURACY else int(rng.integers(1, 4))
    return asked.format(_DIGITS[count - 1], _article(noun)), " ".join(
        _sentence_about(rng, noun) for _ in range(said)
    )


def _write_words(rng: Rng) -> Pair:
    count = int(rng.integers(1, 8))
    said = count if rng.random() < ACCURACY else int(rng.integers(1, 9))
    number = _one(rng, [str(count), _DIGITS[count - 1]])
    asked = _one(rng, ["Write {} word{}.", "Say {} word{}.", "Answer with exactly {} word{}."])
    return asked.format(number, "" if count == 1 else "s"), " ".join(_some(rng, PLAIN_WORDS, said))


def _feel(rng: Rng) -> Pair:
    feeling = _one(rng, CATEGORIES["feeling"])
    asked = [
        "How are you?",
        "How do you feel?",
        f"How does {_one(rng, CATEGORIES['name'])} feel?",
        "Are you well?",
    ]
    return _one(rng, asked), _one(
        rng, [f"I am {feeling}.", f"{feeling}", f"Very {feeling}, {_one(rng, POLITE)}."]
    )


# --- games of several turns -------------------------------------------------------------------------------


def _adventure(rng: Rng) -> list[Message]:
    messages: list[Message] = []
    for turn in range(int(rng.integers(1, 4))):
        things = _some(rng, THINGS, int(rng.integers(1, 4)))
        commands = [f"{_one(rng, ACTIONS)} {thing}" for thing in things] + _some(
            rng, CATEGORIES["direction"], 2
        )
        commands = _some(rng, commands, len(commands))
        seen = f"You see {_listed([_article(thing) for thing in things], 'and')}."
        place = (
            f"You are in the {_one(rng, CATEGORIES['place'])}. " if turn == 0 or rng.random() < 0.3 else ""
        )
        asked = _one(
            rng, [f"Commands: {', '.join(commands)}", f"You can: {', '.join(commands)}.\nWhat do you do?"]
        )
        messages += [user(f"{place}{seen}\n{asked}"), assistant(_one(rng, commands))]
    return messages


def _guessing(rng: Rng) -> list[Message]:
    low, high = 1, _one(rng, [10, 20, 50, 100])
    secret = int(rng.integers(low, high + 1))
    messages = [user(f"I think of a number from {low} to {high}. Guess it.")]
    for _ in range(int(rng.integers(1, 5))):
        # Legal and often sensible, but random: searching well is left to training.
        guess = int(rng.integers(low, high + 1))
        messages.append(assistant(str(guess)))
        if guess == secret:
            break
        higher = secret > guess
        if rng.random() < ACCURACY:
            low, high = (guess + 1, high) if higher else (low, guess - 1)
        messages.append(
            user(_one(rng, ["Higher.", "higher", "Too low."] if higher else ["Lower.", "lower", "Too high."]))
        )
    return messages if messages[-1]["role"] == "assistant" else messages[:-1]


KINDS: dict[str, Callable[[Rng], Pair]] = {
    "say": _say,
    "say often": _say_often,
    "greet": _greet,
    "ask": _ask_politely,
    "name": _name_one,
    "choose": _choose,
    "number": _pick_a_number,
    "yes or no": _yes_or_no,
    "add": _add,
    "larger": _larger,
    "opposite": _opposite,
    "place": _place_of_a_word,
    "reorder": _reorder,
    "count": _count,
    "spell": _spell,
    "sentence": _write_a_sentence,
    "story": _write_a_story,
    "words": _write_words,
    "feel": _feel,
}
GAMES: dict[str, Callable[[Rng], list[Message]]] = {"adventure": _adventure, "guessing": _guessing}
