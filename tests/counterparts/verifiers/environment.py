"""Environments, rubrics and datasets, as far as the bridge meets them."""


class Dataset:
    """Rows, as a dataset of Hugging Face shows them."""

    def __init__(self, rows):
        self.rows = rows
        self.column_names = list(rows[0])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __iter__(self):
        return iter(self.rows)


class Rubric:
    """Scores a rollout with one function."""

    def __init__(self, score, *, has_group_rewards=False):
        self.score = score
        self.has_group_rewards = has_group_rewards

    async def score_rollout(self, state):
        """Write the reward into the state."""
        state["reward"], state["metrics"] = self.score(state)

    async def cleanup(self, state):
        """Hold nothing."""


class MultiTurnEnv:
    """Asks the client for completions until `env_response` returns nothing."""

    tool_defs = None

    def __init__(self, rows, eval_rows, rubric, *, system_prompt=None, max_turns=-1):
        self.system_prompt, self.max_turns, self.rubric = system_prompt, max_turns, rubric
        self.rows, self.eval_rows = rows, eval_rows

    @property
    def requires_group_rollouts(self):
        """Whether it cannot score one rollout alone."""
        return self.rubric.has_group_rewards

    def get_dataset(self):
        """Return the rows for training."""
        return Dataset(self.rows)

    @property
    def eval_dataset(self):
        """The others, if there are any."""
        return None if self.eval_rows is None else Dataset(self.eval_rows)

    def get_eval_dataset(self):
        """Return the others; as in verifiers, those for training if there are none."""
        return self.eval_dataset or self.get_dataset()

    def env_response(self, messages, state):
        """Return the environment's next messages, or nothing at the end."""
        return []

    async def rollout(self, row, client, model, sampling_args):
        """Play one row."""
        head = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        prompt = [*head, *row["prompt"]]
        state = {**row, "error": None, "is_truncated": False, "turns": 0}
        messages = list(prompt)
        try:
            while True:
                response = await client.get_response(messages, model, sampling_args, tools=self.tool_defs)
                said = {"role": "assistant", "content": response.message.content}
                calls = response.message.tool_calls
                messages = [*messages, said | ({"tool_calls": calls} if calls else {})]
                state["turns"] += 1
                if state["turns"] == self.max_turns:
                    state["stop_condition"] = "max_turns_reached"
                    break
                answer = self.env_response(messages, state)
                messages = [*messages, *answer]
                if not answer or state.get("final_env_response"):
                    state["stop_condition"] = "done"
                    break
        except ValueError as error:
            state["error"] = error
        state["completion"] = [
            {k: v for k, v in m.items() if k != "tool_calls"} for m in messages[len(prompt) :]
        ]
        return state
