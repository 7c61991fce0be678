# ruff: noqa: E501, SIM905 - a list of words reads best as one string
"""The words that nano-instruct knows, by category; its instructions and sentences are made of them."""

from __future__ import annotations

CATEGORIES: dict[str, list[str]] = {
    "color": "red blue green yellow orange purple pink brown black white gray gold silver".split(),
    "animal": (
        "cat dog bird fish horse cow pig sheep duck mouse rabbit fox bear wolf lion tiger monkey elephant "
        "snake frog bee ant goat hen owl"
    ).split(),
    "fruit": "apple banana pear plum cherry grape lemon peach melon mango kiwi berry".split(),
    "food": "bread cheese rice soup egg milk cake pizza salad pasta honey butter meat sugar salt tea".split(),
    "place": (
        "house school park garden forest river city village beach market kitchen room street station "
        "library farm shop bridge island hill"
    ).split(),
    "tool": "hammer saw knife spoon fork brush pen pencil rope key lamp clock phone camera map cup".split(),
    "weather": "sun rain snow wind storm cloud fog ice".split(),
    "body part": "hand foot head eye ear nose mouth arm leg back hair tooth".split(),
    "job": "teacher doctor farmer baker driver painter singer writer cook sailor pilot nurse".split(),
    "name": "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Lena Max Nora Oscar Paul Rosa Sam Tom".split(),
    "feeling": "happy sad angry calm proud afraid tired bored glad lonely".split(),
    "number word": "one two three four five six seven eight nine ten".split(),
    "month": (
        "January February March April May June July August September October November December"
    ).split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "direction": "north south east west left right up down".split(),
    "vehicle": "car bus train boat plane bike truck ship".split(),
}
"""What `Name a ...` can ask for."""

OPPOSITES = [
    tuple(pair.split("/"))
    for pair in (
        "hot/cold big/small long/short old/young new/old good/bad happy/sad fast/slow high/low near/far "
        "light/dark open/closed full/empty early/late rich/poor strong/weak hard/soft wet/dry up/down left/right "
        "north/south east/west day/night black/white first/last in/out yes/no true/false loud/quiet clean/dirty "
        "thick/thin deep/shallow easy/difficult safe/dangerous start/stop win/lose buy/sell love/hate come/go "
        "push/pull give/take summer/winter morning/evening"
    ).split()
]
"""A word and the word that means the contrary."""

ADJECTIVES = (
    "big small old young happy sad fast slow hot cold red blue green bright dark quiet loud kind brave clever "
    "funny warm soft strong new good bad little nice beautiful hungry lazy"
).split()
VERBS = (
    "runs sleeps sings jumps walks waits plays eats drinks reads works swims flies laughs cries sits stands "
    "dances looks smiles"
).split()
ACTIONS = (
    "open close take drop push pull use read eat look go wait climb cut light move search enter leave throw"
).split()
THINGS = (
    "door box table chair window book ball stone tree flower coin bag letter wall floor bed shelf chest "
    "sword torch bell ring mirror picture ladder bottle"
).split()
GREETINGS = ["Hello", "Hi", "Good morning", "Good evening", "Welcome", "Hey", "Good day"]
CLOSINGS = ["Goodbye", "Bye", "See you soon", "Good night", "Take care"]
POLITE = ["please", "thank you", "thanks", "sorry", "you are welcome", "excuse me"]

ALL_WORDS = sorted(
    {word for words in CATEGORIES.values() for word in words}
    | {word for pair in OPPOSITES for word in pair}
    | {*ADJECTIVES, *VERBS, *ACTIONS, *THINGS}
)
PLAIN_WORDS = [word for word in ALL_WORDS if word.islower()]
