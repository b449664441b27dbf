"""Check for `helm test` that the operator is alive and the API server serves MambaDeployments to it."""

import os
import ssl
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def get(url: str, headers: dict[str, str], context: ssl.SSLContext | None = None) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=10, context=context
    ) as answer:
        print(f"{answer.status} {url}")


get(os.environ["HEALTH_URL"], {})
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
host = f"[{host}]" if ":" in host else host
get(
    f"https://{host}:{port}/apis/serving.mambaserve.io/v1alpha1{os.environ['RESOURCE']}",
    {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"},
    ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")),
)
