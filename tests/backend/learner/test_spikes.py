from backend.learner.spikes import LEAST_LOSS, SpikeWatch


def watched(numbers, least=0.0):
    watch = SpikeWatch()
    return [watch.observe(number, name="spike", least=least) for number in numbers]


def test_names_how_many_times_larger_a_spike_is():
    usual = [1.0, 1.1, 0.9] * 4
    *before, spike = watched([*usual, 50.0])
    assert not any(before)
    assert spike == {"spike": 50.0}


def test_spikes_about_zero_only_beyond_the_numbers_own_scatter():
    assert not any(watched([0.1, -0.2, 0.3, -0.1] * 4 + [0.9]))
    assert watched([0.1, -0.2, 0.3, -0.1] * 4 + [-9.0])[-1]


def test_sees_no_spike_in_first_number_or_slightly_changed_constant():
    assert not any(watched([2.0] * 12 + [2.5]))
    assert not any(watched([0.0, 100.0]))
    assert not any(watched([0.0] * 12 + [5.0]))


def test_sees_no_spike_in_rounding_until_losses_have_a_size():
    rounding = [1e-8, -2e-8, 3e-8, -1e-8] * 4
    assert watched([*rounding, 6e-4])[-1]
    assert not any(watched([*rounding, 6e-4, 0.09], LEAST_LOSS))
    assert watched([*rounding, 2.0], LEAST_LOSS)[-1] == {"spike": 200.0}
