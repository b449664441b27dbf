"""Streams thousands of requests to a deployment while it is changed, moved and broken; fails if one fails.

Run by `make zero-drop`, as root on Linux: a cluster of one node, the chart, the quick start, the official
client. Results go to benchmarks/results.
"""

import argparse
import signal
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / folder)
    for folder in ("", "libs", "operator", "server", "cli", "kernels", "tests/cluster", "tests/support")
]

import disruptions as d  # noqa: E402
import drop_report  # noqa: E402
from mamba_api import names  # noqa: E402
from product import Deployed, chart  # noqa: E402
from testcluster.build import ensure  # noqa: E402
from testcluster.errors import ClusterError  # noqa: E402
from testcluster.node import Node, running_node  # noqa: E402

SECOND_TAG = f"{names.IMAGE.rpartition(':')[0]}:again"
RESOURCES = {"gpus": 0, "cpu": "50m", "memory": "1Gi"}
"""Resources of an engine: four engines and a replacement must fit into one node."""
HOLD = "120s"
"""Time for which requests may wait for an engine; the default suits people who prefer an early error."""
DRAIN = "60s"
"""The only engine of the only node serves on for half of that when the node is drained."""
OPERATOR_KILLS = 20
LEADER_KILLS = 4
"""Each is a phase, whose length is that of the take-over."""


def disrupt(course: d.Course, rng: Random) -> None:
    """Perform each disruption once, from one engine to four and back to one."""
    deployed = course.deployed
    with course.phase("image change, one engine"):
        d.replace_engines(deployed, {"image": SECOND_TAG})
    with course.phase("three strategy changes"):
        d.switch_strategies(deployed)
    with course.phase("eviction of the only engine"):
        d.evict(deployed, "engine", 1)
    with course.phase("eviction of the only gateway"):
        d.evict(deployed, "gateway", 1)
    with course.phase("a second gateway"):
        deployed.patch({"gateway": {"replicas": 2}})
        d.settle(deployed, "gateway", 2)
    with course.phase("scale 1 to 4"):
        d.scale(deployed, 4)
    with course.phase("gateways rolled"):
        d.roll_gateways(deployed, str(rng.random()))
    with course.phase("clients are asked for keys, engines for theirs"):
        d.ask_for_keys(deployed, True)
        assert course.without_key() == 401
    with course.phase("nobody is asked for keys any more"):
        d.ask_for_keys(deployed, False)
        assert course.without_key() == 200
    with course.phase("API server and etcd down for 5 s"):
        d.restart_api(deployed, 5.0)
    with course.phase("image change, four engines"):
        d.replace_engines(deployed, {"image": names.IMAGE})
    with course.phase("eviction of two engines"):
        d.evict(deployed, "engine", 2)
    with course.phase("scale 4 to 1"):
        d.scale(deployed, 1)
    with course.phase("node drained for 10 s"):
        d.drain_node(deployed, 10.0)
    for number in range(LEADER_KILLS):
        deployed.patch({"replicas": 2 - number % 2})
        with course.phase("the operator that acts is killed, another takes over"):
            d.kill_leader(deployed)
        d.settle(deployed, "engine", 2 - number % 2)
    with course.phase(f"all operators killed {OPERATOR_KILLS} times while engines are replaced and scaled"):
        for number in range(OPERATOR_KILLS):
            change = number % 4
            if change == 0:
                value = str(rng.random())
                deployed.patch({"engine": {"env": [{"name": "ZERO_DROP", "value": value}]}})
            elif change == 2:
                deployed.patch({"replicas": 1 + number // 2 % 2})
            d.kill_operators(deployed, rng, 4.0)
        deployed.patch({"replicas": 1})
        d.settle(deployed, "engine", 1)


def run(node: Node, options: argparse.Namespace) -> d.Course:
    """Run the course once in an existing cluster."""
    node.load_image(SECOND_TAG)
    rng, over = Random(options.seed), time.time() + 60 * options.minutes
    with chart(node):
        deployed = Deployed(node, node.create_namespace("zero-drop"))
        gateway = {"replicas": 1, "limits": {"queueTimeout": HOLD}}
        deployed.apply(resources=RESOURCES, gateway=gateway, rollout={"drainTimeout": DRAIN})
        deployed.wait_ready()
        course = d.Course(deployed)
        with course.traffic(options.streams, options.rate):
            course.wait_answered(50)
            try:
                disrupt(course, rng)
            except (AssertionError, ClusterError) as error:
                course.broken = str(error)
            while course.broken is None and not (course.answered(options.requests) or time.time() > over):
                with course.phase("engines replaced"):
                    value = str(rng.random())
                    d.replace_engines(deployed, {"env": [{"name": "ZERO_DROP", "value": value}]})
                course.wait_answered(100)
        node.delete_namespace(deployed.namespace)
    return course


def main() -> int:
    """Run the course; return 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="make zero-drop", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="at least so many")
    parser.add_argument("--minutes", type=float, default=60.0, help="fewer requests are enough after that")
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--rate", type=float, default=20.0, help="requests in a second, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the node is taken down
    with running_node(ensure()) as node:
        course = run(node, options)
    for path in drop_report.write(course, options.output, streams=options.streams, rate=options.rate):
        print(path)
    for failure in course.failures[:20]:
        print(f"failed: {failure}", file=sys.stderr)
    print(f"{len(course.requests)} requests, {len(course.failures)} failed")
    return 1 if course.failures or course.broken else 0


if __name__ == "__main__":
    sys.exit(main())
