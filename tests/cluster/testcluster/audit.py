"""Requests of service accounts to the API server, from its audit log. Read by `ControlPlane.used_by`."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

Right = tuple[str, str, str]
"""(verb, API group, resource or resource/subresource), as rules of a Role name them."""

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # The controllers of the cluster itself ask much, and nobody asks about them.
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


def used_by(log: Path, account: str) -> set[Right]:
    """Return the rights that requests of `NAMESPACE:NAME` needed; a creating server-side apply needs two."""
    used: set[Right] = set()
    for line in log.read_text().splitlines():
        if f'"system:serviceaccount:{account}"' not in line:
            continue
        event = json.loads(line)
        about = event.get("objectRef")
        if about is None or "resource" not in about:
            continue
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        group = about.get("apiGroup", "")
        used.add((event["verb"], group, resource))
        if event["verb"] == "patch" and event["responseStatus"].get("code") == HTTPStatus.CREATED:
            used.add(("create", group, resource))
    return used
