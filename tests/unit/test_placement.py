"""Placement: cores and memory read from made-up machines, and the room a model gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgellm.config import Settings
from edgellm.contracts.engine import CostModel, KVCost, ModelFile, Placement
from edgellm.errors import InsufficientMemory, InvalidRequest
from edgellm.placement import cgroups, machine
from edgellm.placement.machine import Memory
from edgellm.placement.plan import Plan, as_trained, everyday_context, make_plan, plan_room

GIB = 1 << 30
MIB = 1 << 20


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def cpu_files(siblings: dict[int, str], extra: dict[str, str] | None = None) -> dict[str, str]:
    base = "sys/devices/system/cpu"
    files = {f"{base}/online": ",".join(map(str, siblings)) + "\n"}
    files |= {f"{base}/cpu{n}/topology/thread_siblings_list": text + "\n" for n, text in siblings.items()}
    return files | (extra or {})


# -- cores


def test_hyper_threads_count_once(tmp_path: Path) -> None:
    cpus = machine.read_cpus(tree(tmp_path, cpu_files({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})))
    assert machine.usable_cores(cpus, {0, 1, 4, 5}) == 2
    assert machine.usable_cores(cpus, {0, 4}) == 1
    assert machine.usable_cores(cpus, {0, 5}) == 2
    assert machine.usable_cores(cpus, {7}) == 1  # never none


def test_x86_efficiency_cores_are_left_out(tmp_path: Path) -> None:
    siblings = {0: "0-1", 1: "0-1", 2: "2", 3: "3", 4: "4"}
    cpus = machine.read_cpus(tree(tmp_path, cpu_files(siblings, {"sys/devices/cpu_atom/cpus": "2-4\n"})))
    assert machine.usable_cores(cpus, range(5)) == 1
    assert machine.usable_cores(cpus, {2, 3, 4}) == 3  # all that there is


def test_arm_little_cores_are_left_out(tmp_path: Path) -> None:
    capacity = {0: "250", 1: "250", 2: "760", 3: "1024"}
    extra = {f"sys/devices/system/cpu/cpu{n}/cpu_capacity": text + "\n" for n, text in capacity.items()}
    cpus = machine.read_cpus(tree(tmp_path, cpu_files({n: str(n) for n in capacity}, extra)))
    assert machine.usable_cores(cpus, range(4)) == 2


def test_no_sysfs_no_cpus(tmp_path: Path) -> None:
    assert machine.read_cpus(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("", set()), ("5", {5}), ("x,2-", set()), ("3-1", set())],
)
def test_kernel_lists(text: str, numbers: set[int]) -> None:
    assert machine.parse_list(text) == numbers


@pytest.mark.parametrize(("quota", "count"), [(None, 8), (4.0, 4), (2.9, 2), (0.5, 1), (64.0, 8)])
def test_quota_cuts_cores(quota: float | None, count: int) -> None:
    assert machine.within_quota(8, quota) == count


def test_this_machine_answers() -> None:
    assert 1 <= machine.cores() <= 4096
    memory = machine.memory()
    assert 0 < memory.available <= memory.total
    assert machine.cpu_name()


def test_cpu_name_is_tidied() -> None:
    text = "processor : 0\nmodel name\t: Intel(R) Core(TM) i7-1185G7   @ 3.00GHz\n"
    assert machine.parse_cpu_name(text) == "Intel Core i7-1185G7 @ 3.00GHz"
    assert machine.parse_cpu_name("processor : 0\n") is None


# -- control groups

V2 = {
    "proc/self/cgroup": "0::/user.slice/app\n",
    "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/user.slice/app/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/memory.max": str(4 * GIB),
    "sys/fs/cgroup/user.slice/memory.current": str(3 * GIB),
    "sys/fs/cgroup/user.slice/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    "sys/fs/cgroup/user.slice/app/memory.max": "max\n",
}


def test_v2_limits_of_outer_groups_hold(tmp_path: Path) -> None:
    root = tree(tmp_path, V2)
    assert cgroups.cpu_quota(root) == 1.5
    assert cgroups.memory_limits(root) == [cgroups.MemoryLimit(4 * GIB, 2 * GIB)]
    within = machine.within_limits(Memory(16 * GIB, 10 * GIB), cgroups.memory_limits(root))
    assert within == Memory(4 * GIB, 2 * GIB)


def test_v2_in_a_container_with_its_own_namespace(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2["proc/self/mountinfo"],
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/memory.max": str(GIB),
        "sys/fs/cgroup/memory.current": str(2 * GIB),
    }
    root = tree(tmp_path, files)
    assert cgroups.cpu_quota(root) == 2.0
    assert machine.within_limits(Memory(8 * GIB, 8 * GIB), cgroups.memory_limits(root)) == Memory(GIB, 0)


def v1(mount_root: str, path: str) -> dict[str, str]:
    mounts = [
        f"33 32 0:30 {mount_root} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
        f"34 32 0:31 {mount_root} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        "35 32 0:32 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw",
    ]
    return {
        "proc/self/cgroup": f"4:memory:{path}\n3:cpu,cpuacct:{path}\n0::{path}\n",
        "proc/self/mountinfo": "\n".join(mounts) + "\n",
    }


V1_VALUES = {
    "cpu,cpuacct/{}cpu.cfs_quota_us": "300000\n",
    "cpu,cpuacct/{}cpu.cfs_period_us": "100000\n",
    "memory/{}memory.limit_in_bytes": f"{2 * GIB}\n",
    "memory/{}memory.usage_in_bytes": f"{GIB}\n",
    "memory/{}memory.stat": f"inactive_file 1\ntotal_inactive_file {512 * MIB}\n",
}


@pytest.mark.parametrize(
    ("mount_root", "path", "below"),
    [
        ("/", "/docker/abc", "docker/abc/"),  # the host's view
        ("/docker/abc", "/docker/abc", ""),  # a container without a namespace: the mount is its own group
        ("/", "/not/visible", ""),  # nothing at that path: the mount point is the nearest
    ],
)
def test_v1_limits(tmp_path: Path, mount_root: str, path: str, below: str) -> None:
    values = {"sys/fs/cgroup/" + name.format(below): text for name, text in V1_VALUES.items()}
    root = tree(tmp_path, v1(mount_root, path) | values)
    assert cgroups.cpu_quota(root) == 3.0
    assert cgroups.memory_limits(root) == [cgroups.MemoryLimit(2 * GIB, GIB - 512 * MIB)]


def test_v1_without_limits(tmp_path: Path) -> None:
    values = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    root = tree(tmp_path, v1("/", "/") | values)
    assert cgroups.cpu_quota(root) is None
    assert cgroups.memory_limits(root) == []


def test_no_control_groups(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(tmp_path) is None
    assert cgroups.memory_limits(tmp_path) == []


# -- the plan


def model(trained: int | None = 131_072) -> ModelFile:
    metadata = {} if trained is None else {"llama.context_length": trained}
    return ModelFile(Path("m.gguf"), 1, "llama", metadata, ())


COST = CostModel(weights=GIB, kv=(KVCost("full", 1, per_token=64 * 1024),), process=128 * MIB)
ROOMY = Memory(64 * GIB, 60 * GIB)


def total(capacity: int) -> int:
    return COST.needs(capacity, 32, 512).total


def planned(model: ModelFile, cost: CostModel, settings: Settings, memory: Memory, cores: int = 1) -> Plan:
    return plan_room(model, cost, settings, memory, cores, "f16")


def place(model: ModelFile, cost: CostModel, settings: Settings, memory: Memory, cores: int) -> Placement:
    return planned(model, cost, settings, memory, cores).placement


def settings(**changes: object) -> Settings:
    return msgspec.structs.replace(Settings(memory_reserve=0.0), **changes)


def test_automatic_room_on_a_roomy_machine() -> None:
    placed = place(model(), COST, settings(), ROOMY, cores=6)
    assert (placed.context, placed.capacity) == (8192, 16384)
    assert (placed.threads, placed.threads_batch) == (6, 6)
    assert (placed.max_sequences, placed.batch_tokens) == (32, 512)
    assert (placed.use_mmap, placed.use_mlock, placed.gpu_layers) == (True, False, 0)


def test_context_never_exceeds_training() -> None:
    assert place(model(2048), COST, settings(), ROOMY, 1).context == 2048
    assert place(model(None), COST, settings(), ROOMY, 1).context == 8192


def test_capacity_stays_single_when_double_is_not_modest() -> None:
    # 16,384 tokens are 1 GiB of KV: an eighth of 8 GiB exactly, and more than an eighth of less.
    assert place(model(), COST, settings(), Memory(64 * GIB, 8 * GIB), 1).capacity == 16384
    assert place(model(), COST, settings(), Memory(64 * GIB, 8 * GIB - 1), 1).capacity == 8192


def test_context_shrinks_to_what_fits() -> None:
    memory = Memory(4 * GIB, total(3000))
    placed = place(model(), COST, settings(), memory, 1)
    assert (placed.context, placed.capacity) == (2816, 2816)
    assert total(placed.capacity) <= memory.available


def test_the_reserve_is_left_alone() -> None:
    memory = Memory(10 * GIB, 2 * GIB)
    assert place(model(), COST, settings(), memory, 1).context == 8192
    assert place(model(), COST, settings(memory_reserve=0.08), memory, 1).context < 2048
    with pytest.raises(InsufficientMemory):
        place(model(), COST, settings(memory_reserve=0.2), memory, 1)


def test_too_little_memory_names_need_and_have() -> None:
    with pytest.raises(InsufficientMemory) as caught:
        place(model(), COST, settings(), Memory(2 * GIB, GIB), 1)
    message = caught.value.message
    assert "needs 1.2 GiB" in message
    assert "1.0 GiB weights" in message
    assert "32 MiB KV for 512 tokens" in message
    assert "1.0 GiB of 2.0 GiB is free" in message
    assert caught.value.hint


def test_requested_context() -> None:
    placed = place(model(), COST, settings(context=32768), ROOMY, 1)
    assert (placed.context, placed.capacity) == (32768, 65536)
    with pytest.raises(InsufficientMemory) as caught:
        place(model(), COST, settings(context=32768), Memory(4 * GIB, total(4096)), 1)
    assert "32,768 tokens" in caught.value.message
    assert "4,096 tokens fits" in (caught.value.hint or "")


def test_a_setting_for_all_models_gives_each_what_it_was_trained_for() -> None:
    wide = settings(context=9000)
    assert as_trained(model(8192), wide).context == everyday_context(wide, 8192) == 8192
    assert as_trained(model(32768), wide) == wide
    assert everyday_context(wide, None) == 9000


def test_context_beyond_training_names_both() -> None:
    with pytest.raises(InvalidRequest) as caught:
        place(model(8192), COST, settings(context=9000), ROOMY, 1)
    assert "9,000" in caught.value.message
    assert "8,192" in caught.value.message
    assert caught.value.param == "context"


def test_requested_capacity() -> None:
    placed = place(model(), COST, settings(capacity=4096), ROOMY, 1)
    assert (placed.context, placed.capacity) == (4096, 4096)
    assert place(model(), COST, settings(capacity=40960), ROOMY, 1).context == 8192
    with pytest.raises(InvalidRequest) as caught:
        place(model(), COST, settings(context=4096, capacity=2048), ROOMY, 1)
    assert caught.value.param == "capacity"
    with pytest.raises(InsufficientMemory):
        place(model(), COST, settings(capacity=10_000_000), ROOMY, 1)


def test_threads_and_small_batches() -> None:
    placed = place(model(), COST, settings(threads=3, batch_tokens=8, mmap=False, mlock=True, gpu_layers=7), ROOMY, 16)
    assert (placed.threads, placed.batch_tokens, placed.max_sequences) == (3, 8, 8)
    assert (placed.use_mmap, placed.use_mlock, placed.gpu_layers) == (False, True, 7)
    assert place(model(64), COST, settings(), ROOMY, 1).batch_tokens == 128


def test_a_model_without_kv() -> None:
    recurrent = CostModel(weights=GIB)
    assert place(model(), recurrent, settings(), Memory(2 * GIB, GIB), 1).context == 8192
    with pytest.raises(InsufficientMemory):
        place(model(), recurrent, settings(), Memory(2 * GIB, GIB - 1), 1)


def test_the_longest_context_is_the_last_that_fits() -> None:
    for memory in (total(700), total(5000), total(5120), total(100_000), 60 * GIB):
        plan = planned(model(), COST, settings(), Memory(64 * GIB, memory))
        longest = plan.longest
        assert total(longest) <= memory
        assert longest == 131_072 or (longest % 256 == 0 and total(longest + 256) > memory)
    assert planned(model(None), COST, settings(), ROOMY).longest == 964_608  # 58.875 GiB of 64 KiB each


def test_kinds_of_layers_grow_differently() -> None:
    """Full layers with the room, windows with sequences and steps, recurrent states with sequences alone."""
    cost = CostModel(
        weights=0,
        kv=(
            KVCost("full", 2, per_token=10),
            KVCost("sliding", 4, per_token=20, window=512),
            KVCost("latent", 1, per_token=5),
            KVCost("recurrent", 3, per_sequence=1000),
        ),
        block=256,
    )
    assert cost.needs(4096, 2, 512).kv == {
        "full": 40_960,
        "sliding": 20 * (2 * 512 + 512),
        "latent": 20_480,
        "recurrent": 2000,
    }
    assert cost.needs(1000, 32, 512).kv["sliding"] == 20 * 1024  # no more than there is room for, in blocks
    assert cost.needs(100_000, 2, 512).kv["sliding"] == cost.needs(4096, 2, 512).kv["sliding"]


def test_scratch_is_the_larger_of_layers_and_logits() -> None:
    cost = CostModel(weights=0, kv=(KVCost("full", 1, per_token=1),), activations=100, mask=2, logits=50_000, state=7)
    assert cost.needs(1000, 1, 512).activations == 512 * (100 + 2 * 1000) + 7 + 50_000
    assert cost.needs(1000, 32, 8).activations == 2 * 32 * 50_000
    steps = CostModel(weights=0, activations=100, step_tokens=128)
    assert steps.needs(1000, 1, 512).activations == 12_800


class Engine:
    """As much of an engine as planning asks for."""

    name, title = "e", "Eee"
    kv_types = ("f16", "q8_0")

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:
        per_token = 64 * 1024 if kv_type == "f16" else 34 * 1024
        return CostModel(weights=model.size, kv=(KVCost("full", 1, per_token=per_token),), process=MIB)


ENGINE: Any = Engine()


def test_the_kv_type_is_the_engines_or_the_users() -> None:
    memory = Memory(64 * GIB, GIB)
    usual = make_plan(model(), ENGINE, settings(), memory, 1)
    small = make_plan(model(), ENGINE, settings(kv_type="q8_0"), memory, 1)
    assert (usual.placement.kv_type, small.placement.kv_type) == ("f16", "q8_0")
    assert small.longest > 1.8 * usual.longest
    with pytest.raises(InvalidRequest, match="Eee has no KV type q9") as caught:
        make_plan(model(), ENGINE, settings(kv_type="q9"), memory, 1)
    assert "f16, q8_0" in (caught.value.hint or "")


def test_a_draft_is_counted_in() -> None:
    memory = Memory(64 * GIB, 8 * GIB)
    alone = make_plan(model(), ENGINE, settings(), memory, 1)
    helped = make_plan(model(), ENGINE, settings(), memory, 1, msgspec.structs.replace(model(), size=GIB))
    assert helped.draft is not None
    assert helped.total == alone.total + GIB + helped.draft.kv_total  # one process for both
    assert helped.longest < alone.longest / 1.5
    with pytest.raises(InsufficientMemory, match=r"8\.0 GiB for the draft model"):
        make_plan(model(), ENGINE, settings(), memory, 1, msgspec.structs.replace(model(), size=8 * GIB - 2 * MIB))


def test_weights_beyond_memory_are_refused_or_read_from_disk() -> None:
    memory = Memory(4 * GIB, 2 * GIB)
    large = msgspec.structs.replace(COST, weights=10 * GIB)
    with pytest.raises(InsufficientMemory) as caught:
        planned(model(), large, settings(), memory)
    assert "EDGELLM_SPILL" in (caught.value.hint or "")
    plan = planned(model(), large, settings(spill=True), memory)
    assert plan.placement.spills
    assert plan.placement.memory == plan.room.budget
    assert plan.total == 2 * GIB
    assert plan.disk == large.needs(plan.placement.capacity, 32, 512).total - 2 * GIB
    assert not planned(model(), COST, settings(spill=True), memory).placement.spills
    for changes in ({"mmap": False}, {"mlock": True}):
        with pytest.raises(InsufficientMemory):
            planned(model(), large, settings(spill=True, **changes), memory)
    with pytest.raises(InsufficientMemory):  # the rest must fit all the same
        planned(model(), large, settings(spill=True, context=65_536), memory)
