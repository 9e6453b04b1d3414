"""The choice by all texts but one, on figures that were made up."""

import pytest

from kvsieve_lab.choice import leave_one_out, regrets


def rows(**klds):
    return [{"spec": spec, "kld": dict(zip("xyz", values))} for spec, values in klds.items()]


def test_the_text_left_out_has_no_say_and_is_the_judge():
    # b is best by far on z alone: the mean of all three would take it for every text.
    found = leave_one_out(rows(a=[0.1, 0.1, 0.9], b=[0.2, 0.2, 0.1]))
    assert [one["text"] for one in found] == ["x", "y", "z"]
    assert [one["chosen"] for one in found] == ["b", "b", "a"]
    assert [one["best"] for one in found] == ["a", "a", "b"]
    assert [one["regret"] for one in found] == pytest.approx([2, 2, 9])
    assert found[2]["kld"] == 0.9 and found[2]["kld_best"] == 0.1


def test_a_choice_that_holds_has_no_regret():
    found = leave_one_out(rows(a=[0.3, 0.3, 0.3], b=[0.1, 0.2, 0.0]))
    assert {(one["chosen"], one["regret"]) for one in found} == {("b", 1.0)}


def test_only_pipelines_measured_on_every_text_take_part():
    found = leave_one_out(rows(a=[0.3, 0.3, 0.3], b=[0.1, 0.1]))
    assert {one["chosen"] for one in found} == {"a"} and {one["best"] for one in found} == {"a"}


def test_one_text_leaves_nothing_to_choose_on():
    assert leave_one_out([{"spec": "a", "kld": {"x": 0.1}}]) == []
    assert leave_one_out([]) == []


def test_regrets_weigh_every_text_alike():
    # x is a hundred times as hard as y and z; b is half as good there, and twice as good on both.
    found = regrets(rows(a=[1, 0.02, 0.02], b=[2, 0.01, 0.01], c=[9, 9]))
    assert [one["spec"] for one in found] == ["a", "b"]
    assert [one["mean"] for one in found] == pytest.approx([4 ** (1 / 3), 2 ** (1 / 3)])
    assert [one["worst"] for one in found] == pytest.approx([2, 2])
    assert regrets(rows(a=[0.0, 0.0], b=[0.0, 0.1]))[0]["mean"] == 1
    assert regrets([]) == []
