from backend.learner.spikes import SpikeWatch


def watched(numbers):
    watch = SpikeWatch()
    return [watch.look(number, name="spike") for number in numbers]


def test_a_number_far_from_what_was_usual_is_named_with_how_many_times_as_large_it_is():
    usual = [1.0, 1.1, 0.9] * 4
    *before, spike = watched([*usual, 50.0])
    assert not any(before)
    assert spike == {"spike": 50.0}


def test_numbers_about_zero_spike_only_beyond_their_own_scatter():
    assert not any(watched([0.1, -0.2, 0.3, -0.1] * 4 + [0.9]))
    assert watched([0.1, -0.2, 0.3, -0.1] * 4 + [-9.0])[-1]


def test_a_small_change_of_a_constant_and_a_first_number_are_no_spikes():
    assert not any(watched([2.0] * 12 + [2.5]))
    assert not any(watched([0.0, 100.0]))
    assert not any(watched([0.0] * 12 + [5.0]))
