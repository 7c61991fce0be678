"""A taskset written with the real verifiers (v1), as people publish them; needs verifiers to be imported."""

import verifiers.v1 as vf


class RepeatData(vf.TaskData):
    """A word."""

    answer: str


class RepeatTask(vf.Task[RepeatData]):
    """Say it twice."""

    @vf.reward(weight=1.0)
    async def repeated(self, trace: vf.Trace) -> float:
        """Pay half for each right word."""
        said = [message.content for message in trace.assistant_messages]
        return 0.5 * sum(word == self.data.answer for word in said)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        """Count."""
        return float(trace.num_turns)


class RepeatConfig(vf.TasksetConfig):
    """Which words."""

    words: list[str] = ["red", "green"]  # noqa: RUF012 - pydantic copies it
    trouble: bool = False


class RepeatTaskset(vf.Taskset[RepeatTask, RepeatConfig]):
    """Words."""

    def load(self):
        """Make a task of each."""
        return [
            RepeatTask(
                RepeatData(idx=i, prompt=f"say {word}", system_prompt="Repeat.", answer=word),
                self.config.task,
            )
            for i, word in enumerate(self.config.words)
        ]


class RepeatEnv(vf.SingleAgentEnv):
    """Asks twice."""

    async def run(self, task, agents):
        """Take the first reply, and ask again."""
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            if segment.last_reply == "break":
                raise RuntimeError("broken on purpose")
            await interaction.turn("again")


__all__ = ["RepeatEnv", "RepeatTaskset"]
