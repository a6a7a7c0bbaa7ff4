"""A process that takes part in an election, for tests to kill. It says `leading` or `following` on each change, and
what the election logs (who holds the lease).

    python -m tests.kube.participant KUBECONFIG NAMESPACE LEASE IDENTITY

SIGTERM releases the lease, then ends. SIGKILL does what it does.
"""

import asyncio
import random
import signal
import sys

from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.credentials import Credentials
from picker.edge.kubernetes.lease import LeaseElection, LeaseName


async def take_part(kubeconfig: str, namespace: str, lease: str, identity: str) -> None:
    async with KubernetesApi(Credentials(kubeconfig=kubeconfig)) as api:
        election = LeaseElection(
            api,
            namespace=namespace,
            lease=LeaseName(lease),
            identity=identity,
            on_change=lambda leads: print("leading" if leads else "following", flush=True),
            log=lambda level, message, /, **_: print(message, flush=True),
            rng=random.Random(identity),
        )
        releasing: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: releasing.append(loop.create_task(election.release())))
        await election.run()
        await asyncio.gather(*releasing)


if __name__ == "__main__":
    asyncio.run(take_part(*sys.argv[1:5]))
