"""The owner of a policy, whose calls a pool worker carries out; without client and gateway."""

from __future__ import annotations

from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.policy_calls import ForwardBackward, Logprobs, OptimStep
from tinkergym.schema.sampling import SampleRequest

SEQUENCE = {"token_ids": [65, 66, 67, 68]}
BATCH, STEP = ForwardBackward(sequences=[SEQUENCE]), OptimStep(learning_rate=1e-2)


class Owner:
    """Sends calls, as the gateway stores them."""

    def __init__(self, lab, **settings):
        self.lab, self.seq, self.calls = lab, 0, lab.store.policy_calls()
        spec = PolicySpec(**{"keep_checkpoints": 1, **settings})
        self.job_id = lab.tenant.create_job(spec, {}).job_id
        lab.pool.start_job(self.job_id)

    def call(self, *calls):
        """Send calls, and return the result of the last one."""
        for call in calls:
            self.seq += 1
            self.calls.add(self.job_id, self.seq, call)
        self.lab.pool.routes.wait_for_call(self.job_id, self.seq, 120.0)
        result = self.calls.result(self.job_id, self.seq)
        assert result is not None
        return result

    def send(self, call):
        """Send a call that the worker does not survive."""
        self.seq += 1
        self.calls.add(self.job_id, self.seq, call)
        self.lab.pool.routes.wait_for_call(self.job_id, self.seq, 0.0)

    def logprobs(self):
        """Return what tells one policy from another."""
        return self.call(Logprobs(sequences=[SEQUENCE])).logprobs

    def moved(self, *, from_a_closed_pool=False):
        """Have another worker take the policy up, after a kill."""
        if from_a_closed_pool:
            self.lab.start_pool()
        else:
            self.lab.replace_pool()
        self.lab.pool.start_job(self.job_id)

    def sampled(self, prompt, *, version=None, **settings):
        """Return a completion, by default of the newest version."""
        arrived = []
        sampler = self.lab.transport("").sampler()
        wanted = {"policy": self.job_id, "policy_version": version, "prompt_ids": prompt, **settings}
        sampler.submit([SampleRequest(request_id="r", **wanted)], arrived.extend)
        self.lab.until(self.job_id, lambda: arrived)
        sampler.close()
        return arrived[0]
