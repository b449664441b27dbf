"""`examination`: all checks of `mambaserve doctor`, in the order in which their findings are shown."""

import os
from collections.abc import Collection, Iterator

from mamba_cli.doctor import engine, machine, models, services
from mamba_cli.doctor.finding import Finding


def examination(
    host: str, port: int, kubeconfig: str | None, timeout: float, variables: Collection[str]
) -> Iterator[Finding]:
    """Yield the findings one by one, as the checks end.

    Args:
        host: address that endpoints would bind.
        port: port that `up` and `serve` would use.
        kubeconfig: file of the cluster to check; None = the one kubectl would use.
        timeout: seconds for each answer of the network.
        variables: names of all environment variables that a command reads.
    """
    yield machine.system()
    yield machine.processor()
    yield machine.memory()
    yield machine.open_files()
    yield machine.temporary_directory()
    yield machine.environment(os.environ, variables)
    yield engine.packages()
    facts = engine.torch_facts()
    yield engine.torch(facts)
    yield engine.gpu(facts)
    yield engine.compiler()
    yield engine.kernels(facts)
    yield machine.port(host, port)
    yield models.cache()
    yield models.hub(timeout)
    yield services.redis(os.environ, timeout)
    yield from services.cluster(kubeconfig, timeout)
