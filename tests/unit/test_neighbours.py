"""How many threads decode steps use beside busy neighbours: on machines of which a step's time is made up."""

from __future__ import annotations

import random

import pytest
from edgellm_llamacpp.neighbours import TRIES, WINDOW, ThreadCount, kind, rungs

BASE_S = 0.003  # of a step on one thread


class Machine:
    """Some cores, and programs that keep one each. Where threads are too many, all wait for one that has no turn."""

    def __init__(self, cores: int, seed: int = 1) -> None:
        self.cores, self.busy, self.now = cores, 0.0, 0.0
        self.threads = ThreadCount(cores)
        self.counts: list[int] = []
        self._random = random.Random(seed)

    def seconds(self, threads: int, tokens: int) -> float:
        alone = BASE_S * (1 + tokens / 4) * (0.2 + 0.8 / threads)
        crowd = (threads + self.busy) / self.cores
        if crowd <= 1:
            return alone
        return alone * crowd * (1 if threads == 1 else 4 * sum(1 / n for n in range(1, threads + 1)))

    def step(self, tokens: int = 1, cells: int = 100, noise: float = 0.15) -> None:
        count = self.threads.count
        seconds = self.seconds(count, tokens) * (1 + noise * self._random.random())
        if noise and self._random.random() < 0.01:
            seconds += 0.02  # something woke up
        self.now += seconds
        self.counts.append(count)
        self.threads.took(kind(tokens, cells), seconds, self.now)

    def steps(self, count: int, tokens: int = 1) -> None:
        for _ in range(count):
            self.step(tokens)

    def until_a_trial(self) -> None:
        """With fewer threads, the first."""
        while self.threads.count == self.threads.most:
            self.step()


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 4, 6, 7, 8])])
def test_counts_worth_a_trial(most: int, expected: list[int]) -> None:
    assert rungs(most) == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_quiet_machine_keeps_all_threads(seed: int) -> None:
    """With steps that vary, some of them far too long, in an answer that grows beside others of any number."""
    machine = Machine(4, seed)
    for length in range(5000):
        tokens = (1, 1, 1, 3, 16)[length // 7 % 5]
        machine.step(tokens, 50 + length)
    assert set(machine.counts) == {4}


def test_one_thread_has_nothing_to_choose() -> None:
    machine = Machine(1)
    machine.busy = 3
    machine.steps(100)
    assert set(machine.counts) == {1}


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
@pytest.mark.parametrize("share", [0.5, 1.0, 2.5])
def test_busy_neighbours_are_noticed_and_their_leaving_is(cores: int, share: float) -> None:
    machine = Machine(cores)
    machine.steps(200)
    machine.busy = cores * share
    best = min(rungs(cores), key=lambda count: machine.seconds(count, 1))
    assert best < cores
    machine.steps(150)
    reached = machine.threads.count
    assert machine.seconds(reached, 1) <= 1.4 * machine.seconds(best, 1)
    first = next(n for n, count in enumerate(machine.counts) if count < cores)
    assert first <= 200 + WINDOW
    machine.busy = 0
    until = machine.now + 10
    while machine.now < until:
        machine.step()
    assert set(machine.counts[-100:]) == {cores}


def test_neighbours_who_were_there_first_are_noticed() -> None:
    """No step was ever as quick as it could be, but some are quicker than others: threads get turns by chance."""
    machine = Machine(2)
    machine.busy = 5
    for _ in range(40):
        machine.step(noise=2.0)
    assert machine.threads.count == 1


def test_one_neighbour_on_eight_cores_takes_one_thread() -> None:
    machine = Machine(8)
    machine.steps(40)
    machine.seconds = lambda threads, tokens: 0.02 if threads == 8 else 0.024 / threads  # type: ignore[method-assign]
    machine.steps(40)
    assert machine.counts[-1] == 7


def test_trials_of_more_threads_cost_little_while_neighbours_stay() -> None:
    machine = Machine(2)
    machine.steps(100)
    machine.busy = 5
    machine.steps(100)
    machine.counts.clear()
    began = machine.now
    while machine.now < began + 60:
        machine.step()
    lost = machine.counts.count(2) * machine.seconds(2, 1)
    assert 0 < lost < 0.05 * 60


def test_a_machine_that_became_slower_keeps_all_threads_and_rarely_tries() -> None:
    """No neighbours: it runs hot, or from its battery."""
    machine = Machine(2)
    machine.steps(100)
    usual = machine.seconds
    machine.seconds = lambda threads, tokens: 3 * usual(threads, tokens)  # type: ignore[method-assign]
    machine.steps(10_000)
    assert 0 < machine.counts.count(1) < 100
    assert machine.counts[-100:].count(1) <= TRIES


@pytest.mark.parametrize("slowness", [1.45, 2.0, 3.5])
def test_a_machine_that_became_slower_is_not_left_to_one_of_many_threads(slowness: float) -> None:
    """Ten times as long as all would take: whoever reads would see it."""
    machine = Machine(16)
    machine.steps(100)
    usual = machine.seconds
    machine.seconds = lambda threads, tokens: slowness * usual(threads, tokens)  # type: ignore[method-assign]
    machine.steps(5000)
    assert {16, 15} <= set(machine.counts)  # some were tried
    assert min(machine.counts) >= 8


def test_a_trial_in_which_the_machine_slept_is_not_paid_for_as_a_long_one() -> None:
    """The neighbours, too, are gone by then; steps with one thread take as long as before, and say nothing of that."""
    machine = Machine(2)
    times = {1: 0.003, 2: 0.02}
    machine.seconds = lambda threads, tokens: times[threads]  # type: ignore[method-assign]
    machine.threads.took(kind(1, 100), 0.002, 0.0)
    while machine.threads.count == 2:
        machine.step(noise=0)
    machine.steps(WINDOW)
    while machine.threads.count == 1:
        machine.step(noise=0)
    times[2] = 3600.0
    machine.step(noise=0)
    times[2] = 0.002
    until = machine.now + 60
    while machine.now < until:
        machine.step(noise=0)
    assert machine.threads.count == 2


def test_a_clock_too_coarse_for_a_step_says_nothing() -> None:
    threads = ThreadCount(2)
    for number in range(100):
        threads.took(kind(1, 100), 0.0 if number % 4 else 0.016, float(number))
    assert threads.count == 2


def test_a_trial_that_fails_by_chance_is_soon_made_again() -> None:
    """Also after many that rightly failed, between which ever more time may pass."""
    machine = Machine(2)
    usual = machine.seconds
    machine.steps(100)
    machine.seconds = lambda threads, tokens: (1.8 if threads == 2 else 3) * usual(threads, tokens)  # type: ignore[method-assign]
    machine.steps(30_000)
    machine.busy = 5
    machine.seconds = lambda threads, tokens: usual(threads, tokens) + (0.3 if threads == 1 else 0)  # type: ignore[method-assign]
    machine.until_a_trial()
    machine.step()
    machine.seconds = usual  # type: ignore[method-assign]
    assert machine.threads.count == 2
    until = machine.now + 15
    while machine.now < until:
        machine.step()
    assert machine.threads.count == 1


def test_a_neighbour_who_is_gone_at_once_leaves_no_trace() -> None:
    """Steps became slow, the trial comes when that is over: what it seemed to gain is made sure of."""
    machine = Machine(2)
    machine.steps(100)
    machine.busy = 5
    machine.until_a_trial()
    machine.busy = 0
    machine.steps(TRIES + WINDOW + TRIES)
    assert machine.threads.count == 2


def test_steps_unlike_any_before_say_nothing() -> None:
    """There is nothing to compare them with: a trial that sees only such goes on."""
    machine = Machine(2)
    machine.steps(50)
    machine.busy = 5
    machine.until_a_trial()
    for tokens in range(20, 40):
        machine.step(tokens)
    assert machine.threads.count == 1
    machine.busy = 0
    machine.steps(TRIES + WINDOW + TRIES)
    assert machine.threads.count == 2
