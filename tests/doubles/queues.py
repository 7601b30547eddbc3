"""The order of the tests: what takes minutes comes first, and some wait while others compute."""

# of each process: one has those that wait more than they compute, the others what takes minutes
FIRST = (
    ("test_serving", "test_slurm", "test_rayserve", "test_doctor", "test_kubernetes", "test_remote"),
    ("test_tensor_parallel", "test_onnx_family", "test_any_model"),
    ("test_iree", "test_matrix", "test_adapter_models"),
    ("test_verifier_faults", "test_benches", "test_family_records", "test_triton"),
)  # fmt: skip


def ordered(items: list, processes: int) -> list:
    """The tests such that each process, which gets so many in a row, begins with its own of FIRST."""
    queues = [[] for _ in range(processes)]
    own = {name: n % processes for n, names in enumerate(FIRST) for name in names}
    place = {name: n for n, name in enumerate(own)}
    first = [item for item in items if item.path.stem in own]
    for item in sorted(first, key=lambda item: place[item.path.stem]):
        queues[own[item.path.stem]].append(item)
    rest = [item for item in items if item.path.stem not in own]
    for number, queue in enumerate(queues):  # as xdist cuts what is left for those that have none
        left = len(rest) + sum(map(len, queues[number:]))
        count = max(left // (processes - number) - len(queue), 0)
        queue += rest[:count]
        del rest[:count]
    return [item for queue in queues for item in queue]
