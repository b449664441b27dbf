"""Writes the generated pages of the documentation and checks that every relative link leads somewhere.

`make docs` runs it; `--check` writes nothing and fails on drift, for tests. Pages: the MambaDeployment
reference from the pydantic models, the table of what each field does, the reference of the command line, the
page of served models from the adapters, the chart's table of values from the comments of `values.yaml`, and
the list of pages in `docs/index.md`.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.v1alpha1.conditions import REASONS, REASONS_OF, ConditionType, Reason
from mamba_api.v1alpha1.gateway_status import GATEWAY_REASONS
from mamba_api.v1alpha1.schema import COLUMNS, GATEWAY_COLUMNS, GATEWAYS, Columns, custom_resource_definition
from mamba_cli.local.model_tables import model_tables
from mamba_cli.reference_page import reference_page

ROOT = Path(__file__).resolve().parent.parent
INDEX = Path("docs/index.md")
REFERENCE = Path("docs/reference/mambadeployment.md")
GATEWAY_REFERENCE = Path("docs/reference/mambagateway.md")
EFFECTS = Path("docs/reference/field-effects.md")
COMMANDS = Path("docs/reference/command-line.md")
MODELS = Path("docs/reference/models.md")
EFFECTS_DATA = Path("tests/data/field_effects.yaml")
GATEWAY_EFFECTS_DATA = Path("tests/data/gateway_field_effects.yaml")
CHART_README = Path("charts/mambaserve/README.md")
BEGIN, END = "<!-- begin: written by `make docs` -->", "<!-- end -->"
KINDS = {
    "tutorial": "Tutorials: learn by doing",
    "howto": "How-to: reach one goal",
    "reference": "Reference: look it up",
    "explanation": "Explanation: why it is so",
    "runbooks": "Runbooks: something is wrong",
    "adr": "Decisions: what shapes the whole",
    "notes": "Notebooks: what was tried and measured",
}
COURSE = ("first-deployment", "your-own-model", "in-a-cluster")
"""The tutorials in the order in which a reader takes them."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def reference() -> str:
    """Return the reference page of the CRD: spec, status, conditions and reasons."""
    version = custom_resource_definition()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    lines = [
        "# MambaDeployment",
        "",
        "<!-- Written by `make docs` from the models of mamba_api; edit those. -->",
        "",
        f"`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`, short name `{names.SHORT_NAME}`,",
        f"category `{names.CATEGORY}`. The same file works in a cluster (`kubectl apply -f`) and on one",
        "machine (`mambaserve up`).",
        "",
        "Quantities are Kubernetes quantities (`80Gi`, `500m`, `4`), durations carry a unit (`300s`, `5m`,",
        "`500ms`). `kubectl explain mdep.spec` shows the same text.",
        "",
        "```yaml",
        *(ROOT / "examples/01-quick-start/mamba.yaml").read_text().splitlines(),
        "```",
        "",
        "## Names",
        "",
        *_children(),
        "",
        *_fields(
            schema,
            "The API server refuses an object that breaks one of these, and so does the command line, except",
            "where something cannot change: it does not know what was before.",
            "",
        ),
        "## Conditions and reasons",
        "",
        *_conditions(),
        "## Columns",
        "",
        *_columns(COLUMNS),
        "",
    ]
    return "\n".join(lines)


def _fields(schema: Any, *about_rules: str) -> list[str]:
    """Return the sections on the spec, its rules and the status; `about_rules`: lines before the rules."""
    return [
        "## spec",
        "",
        *_section("spec", schema["spec"]),
        "## Rules over several fields",
        "",
        *about_rules,
        *(f"- `{path}`: {message}." for path, message in _rules("spec", schema["spec"])),
        "",
        "## status",
        "",
        *_section("status", schema["status"]),
    ]


def gateway_reference() -> str:
    """Return the reference page of the CRD MambaGateway."""
    version = custom_resource_definition(GATEWAYS)["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    children = names.GatewayChildren("X")
    rows = [
        ("Deployment, Service", children.gateway, f"the gateways: `{names.url('X', 'NAMESPACE')}`"),
        ("ServiceAccount, Role, RoleBinding", children.gateway, "what gateways may read and write"),
        ("ConfigMap", children.models, "the file of models, which running gateways read again"),
        ("NetworkPolicy", children.engines, "that gateways may reach the engines of the models"),
        ("PodDisruptionBudget", children.gateway, "of two or more, one goes at a time"),
        ("HTTPRoute", children.gateway, "with `spec.httpRoute`"),
    ]
    return "\n".join(
        [
            "# MambaGateway",
            "",
            "<!-- Written by `make docs` from the models of mamba_api; edit those. -->",
            "",
            f"`apiVersion: {names.API_VERSION}`, `kind: {names.GATEWAY_KIND}`, short name",
            f"`{names.GATEWAY_SHORT_NAME}`, category `{names.CATEGORY}`. One address for the models of",
            "several MambaDeployments: [how to use it](../howto/several-models.md#in-a-cluster). It is for",
            "clusters; on one machine `mambaserve up` serves several objects at one address without it.",
            "",
            "```yaml",
            *(ROOT / "examples/16-one-address/gateway/team.yaml").read_text().splitlines(),
            "```",
            "",
            "## Names",
            "",
            "A MambaGateway `X` owns:",
            "",
            "| kind | name | what |",
            "| --- | --- | --- |",
            *(f"| {kind} | `{name}` | {what} |" for kind, name, what in rows),
            "",
            *_fields(schema),
            "## Conditions and reasons",
            "",
            "ModelsResolved says whether each name belongs to one model. Available: a gateway answers.",
            "Degraded: something is wrong, with the reasons of a",
            "[MambaDeployment](mambadeployment.md#conditions-and-reasons). Ready is true while gateways",
            "answer and every child is as it should be, whatever the state of the models. These reasons are",
            "those of a MambaGateway alone:",
            "",
            "| reason | meaning |",
            "| --- | --- |",
            *(f"| {reason.value} | {meaning} |" for reason, meaning in GATEWAY_REASONS.items()),
            "",
            "## Columns",
            "",
            *_columns(GATEWAY_COLUMNS),
            "",
        ]
    )


def _columns(columns: Columns) -> list[str]:
    return [
        "| column | field | shown |",
        "| --- | --- | --- |",
        *(
            f"| {name} | `{path}` | {'wide' if priority else 'always'} |"
            for name, _, path, priority in columns
        ),
    ]


POOLS: tuple[Role, ...] = ("prefill", "decode")


def _children() -> list[str]:
    children = names.Children("X")
    rows = [
        ("Deployment, headless Service, ConfigMap", children.engine, "the engines and their settings"),
        (
            "Deployment, ConfigMap",
            "`, `".join(names.Children("X", role).engine for role in POOLS),
            "with `spec.disaggregation`, in place of the Deployment and the ConfigMap `X-engine`",
        ),
        ("Deployment, Service", children.gateway, f"the gateway: `{names.url('X', 'NAMESPACE')}`"),
        ("ServiceAccount", children.service_account, "of engines and gateway"),
        (
            "Secret",
            children.admin_secret("UID", "KEY"),
            "token of the engines' admin port; `UID`: the object's uid, 8 characters; `KEY`: what made it",
        ),
        (
            "Secret",
            children.engine_key("UID"),
            "key that engines ask gateways for, with `spec.gateway.auth`",
        ),
        ("PersistentVolumeClaim", children.model_cache, "downloaded weights, with `spec.model.cache`"),
        ("Job", f"{children.owner}-load-HASH", "the loader, which downloads them before engines start"),
        ("ConfigMap", children.model_report, "what it found: commit, configuration, size of the weights"),
        ("ConfigMap", children.last_ready, "pods and settings of the last revision of which all were ready"),
        ("ConfigMap", children.wake, "where a gateway asks for an engine, and tells of its Redis"),
        ("Role, RoleBinding", children.gateway, "what gateways may read and write, those two alone"),
        ("NetworkPolicy", children.engines, "who reaches engines: gateways, the operator, scrapers, peers"),
        (
            "PodDisruptionBudget",
            f"{children.engines}`, `{children.gateway}",
            "of two or more, one goes at a time",
        ),
        ("InferencePool", children.inference_pool, "with `spec.gateway.inferencePool`"),
    ]
    return [
        "A MambaDeployment `X` owns:",
        "",
        "| kind | name | what |",
        "| --- | --- | --- |",
        *(f"| {kind} | `{name}` | {what} |".replace(", X-", "`, `X-") for kind, name, what in rows),
    ]


def _section(path: str, schema: dict[str, Any]) -> list[str]:
    """Return a table of one object's fields, then the sections of the objects inside it."""
    required = set(schema.get("required", ()))
    lines = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    inner: list[tuple[str, dict[str, Any]]] = []
    for name, field in schema["properties"].items():
        shown = f"[`{name}`](#{_anchor(f'{path}.{name}')})" if _has_section(field) else f"`{name}`"
        meaning = field["description"].replace("|", "\\|")
        lines.append(f"| {shown} | {_type(field)} | {_default(field, name in required)} | {meaning} |")
        if "properties" in field:
            inner.append((f"{path}.{name}", field))
        elif "properties" in field.get("items", {}):
            inner.append((f"{path}.{name}[]", field["items"]))
    lines.append("")
    for child, field in inner:
        lines += [f"### {child}", "", *_section(child, field)]
    return lines


def _has_section(field: dict[str, Any]) -> bool:
    return "properties" in field or "properties" in field.get("items", {})


def _anchor(path: str) -> str:
    return re.sub(r"[.\[\]]", "", path).lower()


def _type(field: dict[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        inner = field["items"]
        return f"list of {_type(inner)}s" if "properties" not in inner else "list"
    if field["type"] == "object":
        return "map" if "additionalProperties" in field else "object"
    kind = {"string": "string", "boolean": "boolean", "integer": "integer", "number": "number"}[field["type"]]
    if any("a duration is" in rule["message"] for rule in field.get("x-kubernetes-validations", ())):
        return "duration"
    return kind + _bounds(field)


def _bounds(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is None and high is None:
        return ""
    above = ">" if field.get("exclusiveMinimum") else "≥"
    if high is None:
        return f" {above} {low:g}"
    return f", {above} {low} and ≤ {high}"


def _default(field: dict[str, Any], required: bool) -> str:
    if required:
        return "**required**"
    if "default" not in field or (_has_section(field) and field["type"] == "object"):
        return ""
    return f"`{json.dumps(field['default'], ensure_ascii=False)}`"


def _rules(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if schema.get("type") == "object":
        for rule in schema.get("x-kubernetes-validations", ()):
            yield path, rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", field)
        if "properties" in field.get("items", {}):
            yield from _rules(f"{path}.{name}[]", field["items"])


def _conditions() -> list[str]:
    lines = ["Events carry the same reason words. Each leads to what to do about it.", ""]
    for type_ in ConditionType:
        reasons = [reason for reason in Reason if reason in REASONS_OF[type_]]
        if type_ is ConditionType.READY:
            lines += [
                "### Ready",
                "",
                f"True with the reason `{Reason.SERVING}`: {REASONS[Reason.SERVING]} While it is not true it",
                "repeats the reason and the message of whatever is in the way.",
                "",
            ]
            continue
        if type_ in (ConditionType.RECONCILING, ConditionType.STALLED):
            whose = (
                "it is under way" if type_ is ConditionType.RECONCILING else "somebody has to do something"
            )
            lines += [
                f"### {type_}",
                "",
                f"True while UpToDate is False and {whose}; repeats its reason.",
                "",
            ]
            continue
        lines += [f"### {type_}", "", "| reason | meaning |", "| --- | --- |"]
        lines += [
            f"| [`{reason}`](../runbooks/conditions.md#{reason.lower()}) | {REASONS[reason]} |"
            for reason in reasons
        ]
        lines.append("")
    return lines


def effects() -> str:
    """Return the page that lists, for each field of the spec, the proof of its effect or its refusal."""
    table: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / EFFECTS_DATA).read_text())
    local = {"acts": "acts", "note": "a note says that it acts in a cluster alone", "refused": "refused"}
    lines = [
        "# What each field does, and the test that shows it",
        "",
        f"<!-- Written by `make docs` from {EFFECTS_DATA}; edit that. -->",
        "",
        "Every field of a MambaDeployment's `spec` either acts or is refused with words that name it. A test",
        "fails for a field that is missing here and for a test that does not exist. Refused means: by the",
        "API server and by the command line, with the message of a rule of",
        "[MambaDeployment](mambadeployment.md#rules-over-several-fields).",
        "",
        "| field | in a cluster | with `mambaserve up` | shown by |",
        "| --- | --- | --- | --- |",
    ]
    for field, entry in table.items():
        shown = [test.partition("::")[2].partition("[")[0] for test in entry.get("effect", ())]
        acts = "acts" if shown else "refused"
        if shown and entry.get("refused"):
            acts += "; refused: " + ", ".join(entry["refused"])
        tests = ", ".join(f"`{name}`" for name in dict.fromkeys(shown)) or ", ".join(entry["refused"])
        lines.append(f"| `{field}` | {acts} | {local[entry['local']]} | {tests} |")
    return "\n".join([*lines, "", *_gateway_effects(), ""])


def _gateway_effects() -> list[str]:
    """Return the section about the fields of a MambaGateway, all of which act."""
    table: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / GATEWAY_EFFECTS_DATA).read_text())
    lines = [
        "## MambaGateway",
        "",
        f"Written from {GATEWAY_EFFECTS_DATA}. Every field of a [MambaGateway](mambagateway.md) acts in a",
        "cluster; `mambaserve up` reads no MambaGateway.",
        "",
        "| field | refused | shown by |",
        "| --- | --- | --- |",
    ]
    for field, entry in table.items():
        tests = dict.fromkeys(test.partition("::")[2].partition("[")[0] for test in entry["effect"])
        shown = ", ".join(f"`{name}`" for name in tests)
        lines.append(f"| `{field}` | {', '.join(entry.get('refused', ()))} | {shown} |")
    return lines


def chart_readme() -> str:
    """Return the chart's README with an updated table of values."""
    rows = [f"| `{path}` | {default} | {comment} |" for path, default, comment in values()]
    return _between(CHART_README, ["| value | default | meaning |", "| --- | --- | --- |", *rows])


def index() -> str:
    """Return the entry page with an updated list of all pages."""
    lines: list[str] = []
    for folder, heading in KINDS.items():
        found = sorted((ROOT / "docs" / folder).glob("*.md"), key=_place)
        if found:
            entries = [f"- [{_title(page)}]({page.relative_to(ROOT / 'docs')})" for page in found]
            lines += [*([""] if lines else []), f"## {heading}", "", *entries]
    return _between(INDEX, lines)


def _place(page: Path) -> tuple[int, str]:
    """Return where a page stands in its folder: tutorials in their order, others by name."""
    return (COURSE.index(page.stem) if page.stem in COURSE else len(COURSE), page.name)


def _title(page: Path) -> str:
    return next(line[2:] for line in page.read_text().splitlines() if line.startswith("# "))


def distances() -> list[str]:
    """Return the lines on how far quantized weights are from bfloat16; none without a recorded result."""
    path = max((ROOT / "benchmarks/results").glob("*-quantization-kl.json"), default=None)
    if path is None:
        return []
    kept, text = json.loads(path.read_text()), path.with_suffix(".md")
    machine = kept["machine"]
    positions = ", ".join(
        f"{each['positions']} positions of the {name} model" for name, each in kept["models"].items()
    )
    return [
        "",
        "## Distance of quantized weights",
        "",
        "Mean KL(bfloat16 || weights) over the positions of a text, in nats, and the share of positions",
        "whose best token stays. Numbers of published forms are rounded to the nearest here; what GPTQ",
        "and AWQ calibrate is nearer. Written by `python -m benchmarks.quantization_kl`",
        f"([result](../../{text.relative_to(ROOT)})): {machine['processor'].strip()}, torch",
        f"{machine['versions']['torch']}, {positions}.",
        "",
        *(line for line in text.read_text().splitlines() if line.startswith("|")),
    ]


def _between(page: Path, lines: list[str]) -> str:
    """Return the text of a page with `lines` between its markers."""
    head, rest = (ROOT / page).read_text().split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return "\n".join([f"{head}{BEGIN}", "", *lines, "", f"{END}{tail}"])


def values() -> Iterator[tuple[str, str, str]]:
    """Yield the path, default and comment of every value of the chart, two levels deep."""
    text = (ROOT / "charts/mambaserve/values.yaml").read_text()
    data = yaml.safe_load(text)
    comment: list[str] = []
    section = ""
    for line in text.splitlines():
        key = re.match(r"^( {0,2})([a-zA-Z]+):", line)
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif key and len(key[1]) in (0, 2):
            name = key[2]
            section, path = (section, f"{section}.{name}") if key[1] else (name, name)
            value = data[section][name] if key[1] else data[name]
            if key[1] or not isinstance(value, dict) or not value or comment:
                shown = "" if isinstance(value, dict) and not key[1] and value else f"`{json.dumps(value)}`"
                yield path, shown, " ".join(comment).replace("|", "\\|")
            comment = []
        elif not line.strip():
            comment = []


def broken_links() -> list[str]:
    """Return the relative links of Markdown files that lead to no file, or to no heading of one."""
    found = []
    for page in pages():
        text = FENCE.sub("", (ROOT / page).read_text())
        for match in LINK.finditer(text):
            target = match[1] or match[2]
            if re.match(r"^[a-z][a-z0-9+.-]*:", target):
                continue
            file, _, anchor = target.partition("#")
            path = ((ROOT / page).parent / file).resolve() if file else ROOT / page
            if not path.exists() or not path.is_relative_to(ROOT):
                found.append(f"{page}: {target} leads nowhere")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                found.append(f"{page}: {target} has no such heading")
    return found


def pages() -> list[Path]:
    """Return every Markdown file that people read."""
    roots = ("docs", "examples", "charts", "kernels", "benchmarks", "training")
    nested = [path for root in roots for path in (ROOT / root).rglob("*.md")]
    return sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *nested])


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def main() -> int:
    """Write the pages; return 1 when a page is out of date (with --check) or a link is broken."""
    parser = argparse.ArgumentParser(description="Write the generated pages and check the links.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check = parser.parse_args().check
    failed = False
    for path, make in (
        (REFERENCE, reference),
        (GATEWAY_REFERENCE, gateway_reference),
        (EFFECTS, effects),
        (COMMANDS, reference_page),
        (MODELS, lambda: _between(MODELS, [*model_tables(), *distances()])),
        (CHART_README, chart_readme),
        (INDEX, index),
    ):
        text = make()
        old = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        if old == text:
            continue
        if check:
            failed = True
            print(f"{path} is out of date: run `make docs`", file=sys.stderr)
            print(
                *list(difflib.unified_diff(old.splitlines(), text.splitlines(), lineterm=""))[:20], sep="\n"
            )
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text)
            print(f"wrote {path}", file=sys.stderr)
    for problem in broken_links():
        failed = True
        print(problem, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
