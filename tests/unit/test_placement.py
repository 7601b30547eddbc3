"""Replicas and nodes: what finds its place in any order, and what may wait for ever."""

from ingot.serving.kuberay.placement import stuck

CPU, OWN = {"CPU": 1}, {"CPU": 1, "openvino": 1}


def test_what_asks_for_any_cpu_may_take_the_one_beside_a_resource():
    found = stuck([("ingress", CPU), ("model", OWN)], [{"CPU": 1}, {"CPU": 1, "openvino": 1}])
    assert (found.path, found.asks, found.taker) == ("model", OWN, "ingress")


def test_room_for_both_or_no_cpu_asked_for_is_enough():
    nodes = [{"CPU": 1}, {"CPU": 2, "openvino": 1}]
    assert stuck([("ingress", CPU), ("model", OWN)], nodes) is None
    nodes = [{"CPU": 1}, {"CPU": 0, "openvino": 1}]
    assert stuck([("ingress", CPU), ("model", {"openvino": 1})], nodes) is None


def test_a_small_replica_may_break_the_room_of_a_large_one():
    found = stuck([("small", {"GPU": 1}), ("large", {"GPU": 4})], [{"GPU": 4}, {"GPU": 4}])
    assert found is None
    found = stuck([("small", {"GPU": 1})] * 2 + [("large", {"GPU": 4})], [{"GPU": 4}, {"GPU": 4}])
    assert found.path == "large"


def test_tenths_add_up():
    assert stuck([("a", {"CPU": 0.8}), ("b", {"CPU": 0.1}), ("c", {"CPU": 0.1})], [CPU]) is None
