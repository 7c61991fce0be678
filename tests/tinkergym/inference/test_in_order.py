import random
import threading

import pytest

from tinkergym.inference.in_order import InOrder
from tinkergym.schema.sampling import Completion, SampleRequest


class Shuffling:
    """Answers requests from another thread, in any order."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._waiting = []
        self.most_flying = self.flying = 0
        self._counting = threading.Lock()

    def submit(self, requests, deliver):
        with self._counting:
            self.flying += len(requests)
            self.most_flying = max(self.most_flying, self.flying)
        self._waiting += [(request, deliver) for request in requests]
        self._random.shuffle(self._waiting)
        count = self._random.randint(1, len(self._waiting))
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        threading.Thread(target=self._answer, args=(some + self._waiting,)).start()
        self._waiting = []

    def _answer(self, some):
        for request, deliver in some:
            with self._counting:
                self.flying -= 1
            completion = Completion(
                request_id=request.request_id,
                token_ids=[request.seed],
                sampling_logprobs=[0.0],
                finish_reason="stop",
                policy_version=0,
            )
            deliver([completion])

    def close(self):
        pass


def work(sizes):
    for item, size in enumerate(sizes):
        yield (
            item,
            [
                SampleRequest(
                    request_id=f"{item}-{number}",
                    policy="nano",
                    prompt_ids=[1],
                    max_tokens=1,
                    seed=10 * item + number,
                )
                for number in range(size)
            ],
        )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("in_flight", "ahead"), [(1, 1), (4, 3), (64, 256)])
def test_yields_all_answers_in_order(seed, in_flight, ahead):
    sizes = random.Random(seed).choices([0, 1, 3], k=60)
    sampler = Shuffling(seed)
    found = list(InOrder(sampler, in_flight=in_flight, ahead=ahead).run(work(sizes)))
    assert [item for item, _ in found] == list(range(60))
    drawn = [[answer.token_ids[0] for answer in answers] for _, answers in found]
    assert drawn == [[10 * item + number for number in range(size)] for item, size in enumerate(sizes)]
    assert sampler.most_flying <= in_flight + 2


def test_reads_no_more_work_than_may_be_open():
    taken = []

    def counted():
        for one in work([1] * 1000):
            taken.append(one)
            yield one

    class Silent(Shuffling):
        def submit(self, requests, deliver):
            raise_on = [request.request_id for request in requests]
            raise TimeoutError(raise_on)

    with pytest.raises(TimeoutError):
        list(InOrder(Silent(0), in_flight=100, ahead=8).run(counted()))
    assert len(taken) == 8


def test_lets_its_owner_stop_a_wait():
    class Deaf(Shuffling):
        def submit(self, requests, deliver):
            pass

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(InOrder(Deaf(0), in_flight=4, ahead=4, check=stop).run(work([1, 1])))
