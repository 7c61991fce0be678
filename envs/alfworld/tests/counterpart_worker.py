"""A counterpart of the process of ALFWorld's engine: not ALFWorld, but the same questions and answers.

Its "problem" is JSON: which thing lies where. `break`, `hang` and `die` in it do what they say.
"""

import json
import os
import threading

from tinkergym_alfworld.worker import serve, streams

from tinkergym.user_code.parent_watch import end_with_parent


class Counterpart:
    def load(self, problem, task):
        house = json.loads(problem)
        self.places, self.goal = house["places"], house["goal"]
        self.trouble = house.get("trouble")
        self.here, self.held = None, None
        names = ", ".join(f"a {place}" for place in self.places)
        intro = f"-= COUNTERPART =-\n\nYou are in the middle of a counterpart of a room. You see {names}.\n\n"
        return self.shown(f"{intro}Your task is to: {task}")

    def step(self, command):
        if self.trouble == "break":
            raise SystemExit("broken on purpose")
        if self.trouble == "die":
            os._exit(3)
        if self.trouble == "hang":
            threading.Event().wait()
        print("what the engine prints is no answer")
        match command.split():
            case ["go", "to", *place]:
                self.here = " ".join(place)
                return self.shown(
                    f"On the {self.here}, you see {', '.join(self.places[self.here]) or 'nothing'}."
                )
            case ["take", kind, number, "from", *_]:
                self.held = f"{kind} {number}"
                self.places[self.here].remove(self.held)
                return self.shown(f"You pick up the {self.held}.")
            case ["move", kind, number, "to", *_]:
                self.places[self.here].append(f"{kind} {number}")
                self.held = None
                return self.shown(f"You move the {kind} {number}.")
        return self.shown("You look around.")

    def commands(self):
        commands = ["look", *(f"go to {place}" for place in self.places if place != self.here)]
        if self.here and self.held is None:
            commands += [f"take {thing} from {self.here}" for thing in self.places[self.here]]
        if self.here and self.held:
            commands.append(f"move {self.held} to {self.here}")
        return commands

    def shown(self, feedback):
        thing, place = self.goal
        won = thing in self.places[place]
        return {"feedback": feedback, "commands": self.commands(), "won": won}


if __name__ == "__main__":
    questions, answers = streams()
    end_with_parent()
    serve(Counterpart(), questions, answers)
