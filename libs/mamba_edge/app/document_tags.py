"""`tag_operations`: the groups in which a page shows the operations of an OpenAPI document. Pure."""

from typing import Any

_GROUPS = (
    ("Generation", "Answers of the model.", ("/v1/chat/", "/v1/completions")),
    ("Models", "What is served.", ("/v1/models", "/v1/tokenizer")),
    ("State", "What engines and gateways do.", ("/v1/", "/metrics")),
    ("Administration", "For operators of the server.", ("/admin/",)),
    ("Process", "Probes, version and this document.", ("/",)),
)
"""Name, description and prefixes of paths; the first group with a prefix of a path has it."""


def tag_operations(document: dict[str, Any]) -> None:
    """Give each operation of `document` the tag of its group, and list the groups that have any."""
    used: set[str] = set()
    for path, operations in document["paths"].items():
        name = next(name for name, _, prefixes in _GROUPS if path.startswith(prefixes))
        used.add(name)
        for operation in operations.values():
            operation["tags"] = [name]
    document["tags"] = [
        {"name": name, "description": description} for name, description, _ in _GROUPS if name in used
    ]
